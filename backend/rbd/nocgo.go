//go:build !cgo

package rbd

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
)

var errNotBuilt = errors.New("this program was built without cgo and cannot export images of " +
	"Ceph: build it with CGO_ENABLED=1")

// Supported returns the reason why this program cannot export images.
func Supported() error { return errNotBuilt }

// Probe reports the error of Supported.
func Probe(Config) (r backend.Report) {
	r.Add(errNotBuilt)
	return r
}

// Open returns the error of Supported.
func Open(Config) (backend.Device, error) { return nil, errNotBuilt }
