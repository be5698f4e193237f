//go:build !cgo

package rados

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/rados"
)

// Engine does not exist here.
type Engine struct{ group.Engine }

// Cluster returns nil.
func (e *Engine) Cluster() *rados.Cluster { return nil }

var errNotBuilt = errors.New("this program was built without cgo and cannot be a gateway of " +
	"Ceph: build it with CGO_ENABLED=1")

// Connect returns an error, since this program cannot reach Ceph.
func Connect(Config) (*Engine, error) { return nil, errNotBuilt }

// Open returns an error as well.
func Open(*rados.Cluster, string, string) (Object, error) { return nil, errNotBuilt }
