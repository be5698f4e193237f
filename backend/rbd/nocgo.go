//go:build !cgo

package rbd

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/rados"
)

var errNotBuilt = errors.New("this program was built without cgo and cannot export images of " +
	"Ceph: build it with CGO_ENABLED=1")

// Probe reports that this program cannot export images.
func Probe(Config) (r backend.Report) {
	r.Add(errNotBuilt)
	return r
}

// Examine returns an error, since this program cannot export images.
func Examine(rados.Access) (Access, error) { return Access{}, errNotBuilt }

// Open returns an error, since this program cannot export images.
func Open(Config) (backend.Device, error) { return nil, errNotBuilt }

// Gate is not used in this program.
type Gate struct{}

// Open does nothing.
func (*Gate) Open(*Holder) error { return nil }

// Describe does nothing.
func (*Gate) Describe() {}

// Lose does nothing.
func (*Gate) Lose() {}

// Close does nothing.
func (*Gate) Close() {}
