//go:build !cgo

// Package openssl binds the handshake and the AEAD of TLS 1.3 to OpenSSL. This program is built
// without cgo, so it has no TLS.
package openssl

import (
	"errors"

	"golang.org/x/sys/unix"
)

var errNotBuilt = errors.New("this program was built without cgo and has no TLS: build it with " +
	"CGO_ENABLED=1 and the headers of OpenSSL (libssl-dev)")

// Supported returns the reason why this program has no TLS.
func Supported() error { return errNotBuilt }

// Handshake is not supported.
type Handshake struct{}

// NewHandshake returns the error of Supported.
func NewHandshake(_, _ bool, _, _ []byte) (*Handshake, error) { return nil, errNotBuilt }

// Step returns the error of Supported.
func (*Handshake) Step([]byte) ([]byte, bool, error) { return nil, false, errNotBuilt }

func (*Handshake) Left([]byte) []byte { return nil }

func (*Handshake) Secrets() (client, server []byte) { return nil, nil }

func (*Handshake) MaxFragment() int { return 0 }

// Free does nothing.
func (*Handshake) Free() {}

// AEAD is not supported.
type AEAD struct{}

// NewAEAD returns the error of Supported.
func NewAEAD(bool, []byte, []byte) (*AEAD, error) { return nil, errNotBuilt }

// Free does nothing.
func (*AEAD) Free() {}

// Vectors returns nil.
func Vectors([]byte) []unix.Iovec { return nil }

// Seal fails.
func (*AEAD) Seal([]byte, uint64, []unix.Iovec, int, int, int, byte) (int, bool) { return 0, false }

// Open fails.
func (*AEAD) Open([]byte, uint64, []byte, int) (byte, bool) { return 0, false }
