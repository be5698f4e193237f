//go:build cgo

// Package openssl binds the handshake and the AEAD of TLS 1.3 to OpenSSL (libssl, libcrypto).
package openssl

/*
#cgo pkg-config: libssl libcrypto
#include "openssl.h"

#cgo noescape aead_seal
#cgo nocallback aead_seal
#cgo noescape aead_open
#cgo nocallback aead_open
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported returns the reason why this program has no TLS, or nil if it has.
func Supported() error { return nil }

// Handshake is that of one connection, with an external PSK, for one goroutine at a time.
type Handshake struct{ c *C.struct_handshake }

// NewHandshake makes a handshake with the cipher suite for SHA-256 or SHA-384. Without a PSK the
// handshake of a server fails, with the alert for the ClientHello. Free must be called.
func NewHandshake(server, sha384 bool, identity, psk []byte) (*Handshake, error) {
	c := C.hs_new(flag(server), flag(sha384), bytesOf(identity), C.size_t(len(identity)),
		bytesOf(psk), C.size_t(len(psk)))
	if c == nil {
		return nil, fmt.Errorf("start of a TLS handshake: %w", lastError())
	}
	return &Handshake{c}, nil
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func bytesOf(b []byte) *C.uchar { return (*C.uchar)(unsafe.Pointer(unsafe.SliceData(b))) }

// Step processes the peer's bytes and returns the bytes to send to it, also after an error.
func (h *Handshake) Step(in []byte) (out []byte, done bool, err error) {
	r := C.hs_step(h.c, bytesOf(in), C.size_t(len(in)))
	if r < 0 {
		err = lastError()
	}
	var buf [2 << 10]byte
	for {
		n := C.hs_output(h.c, bytesOf(buf[:]), C.size_t(len(buf)))
		if n == 0 {
			return out, r == 1, err
		}
		out = append(out, buf[:n]...)
	}
}

// Left returns the input after the handshake, once it is done.
func (h *Handshake) Left(room []byte) []byte {
	return room[:C.hs_left(h.c, bytesOf(room), C.size_t(len(room)))]
}

// Secrets returns copies of the traffic secrets of client and server (RFC 8446 section 7.1).
func (h *Handshake) Secrets() (client, server []byte) {
	n := C.int(h.c.secret_len)
	return C.GoBytes(unsafe.Pointer(&h.c.secrets[0]), n),
		C.GoBytes(unsafe.Pointer(&h.c.secrets[1]), n)
}

// MaxFragment returns the maximum size of a record that the peer accepts, in bytes.
func (h *Handshake) MaxFragment() int { return int(C.hs_fragment(h.c)) }

// Free wipes and frees OpenSSL's state.
func (h *Handshake) Free() {
	C.hs_free(h.c)
	h.c = nil
}

func lastError() error {
	var code C.ulong
	reason := C.hs_error(&code)
	switch {
	case reason != nil:
		return errors.New(C.GoString(reason))
	case code != 0:
		return fmt.Errorf("error %#x of OpenSSL", uint64(code))
	}
	return errors.New("the peer did not use the PSK")
}

// AEAD is AES-GCM with the key of one direction. One goroutine at a time may use it.
type AEAD struct {
	c  *C.EVP_CIPHER_CTX
	iv [12]byte
}

// NewAEAD takes a key of 16 or 32 bytes and an IV of 12. Free must be called.
func NewAEAD(seal bool, key, iv []byte) (*AEAD, error) {
	c := C.aead_new(flag(seal), bytesOf(key), C.size_t(len(key)))
	if c == nil {
		return nil, fmt.Errorf("AES-GCM: %w", lastError())
	}
	a := &AEAD{c: c}
	copy(a.iv[:], iv)
	return a, nil
}

// Free wipes and frees OpenSSL's state.
func (a *AEAD) Free() {
	if a != nil && a.c != nil {
		C.EVP_CIPHER_CTX_free(a.c)
		a.c = nil
	}
}

// Vectors returns memory outside of the Go heap as vectors for Seal.
func Vectors(b []byte) []unix.Iovec {
	return unsafe.Slice((*unix.Iovec)(unsafe.Pointer(unsafe.SliceData(b))),
		len(b)/int(unsafe.Sizeof(unix.Iovec{})))
}

// Seal makes records of at most most bytes of content each, from sequence number seq on, from the n
// bytes of v after the first skip bytes, and returns their length. out must have room. v, and all
// memory that it refers to, must be outside of the Go heap, or pinned.
func (a *AEAD) Seal(out []byte, seq uint64, v []unix.Iovec, skip, n, most int, typ byte) (int,
	bool,
) {
	size := C.aead_seal(a.c, bytesOf(a.iv[:]), C.uint64_t(seq),
		(*C.struct_iovec)(unsafe.Pointer(unsafe.SliceData(v))), C.size_t(skip), C.size_t(n),
		C.size_t(most), C.uchar(typ), bytesOf(out))
	return int(size), size > 0
}

// Open opens a record with a checked header. It writes all of its inner plaintext but the last byte
// to out, which may be the place of that plaintext in record, and returns the last byte. ok is
// false if the record is forged; then the content of out is meaningless.
func (a *AEAD) Open(out []byte, seq uint64, record []byte, n int) (last byte, ok bool) {
	var b [1]byte
	r := C.aead_open(a.c, bytesOf(a.iv[:]), C.uint64_t(seq), bytesOf(record), C.size_t(n),
		bytesOf(out), bytesOf(b[:]))
	return b[0], r == 1
}
