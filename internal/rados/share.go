//go:build cgo

package rados

/*
#include <stdlib.h>
#include "rados.h"
*/
import "C"

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sharer is an owner of a shared lock.
type Sharer struct {
	Owner string
	// Addr is the address of its connection, as Fence takes it.
	Addr string

	client string
}

// maxSharers bounds each list of Sharers in bytes. Longer ones are an error.
const maxSharers = 16 << 10

// Share takes the shared lock of an object, which must exist. All owners of the lock have the same
// tag: Share fails with EBUSY while there is an owner with another one. The lock outlasts the
// connection, until Unshare or Evict. The errors of the methods for locks are unix.Errno. The
// methods wait for the cluster.
func (p *Pool) Share(object, owner, tag string) error {
	c, free := cStrings(object, owner, tag)
	defer free()
	return errno(C.object_share(p.handle, c[0], c[1], c[2]))
}

// Unshare ends the lock of this connection and owner.
func (p *Pool) Unshare(object, owner string) error {
	c, free := cStrings(object, owner)
	defer free()
	return errno(C.object_unshare(p.handle, c[0], c[1]))
}

// Sharers returns the tag and the owners of the shared lock of an object.
func (p *Pool) Sharers(object string) (tag string, list []Sharer, err error) {
	c, free := cStrings(object)
	defer free()
	var texts [4][maxSharers]C.char // tag, clients, owners and addresses
	n := C.object_sharers(p.handle, c[0], &texts[0][0], &texts[1][0], &texts[2][0], &texts[3][0],
		maxSharers)
	if n <= 0 {
		return "", nil, errno(n)
	}
	var fields [3][]string
	for i := range fields {
		all := C.GoStringN(&texts[i+1][0], maxSharers)
		fields[i] = strings.SplitN(all, "\x00", int(n)+1)
	}
	for i := range int(n) {
		addr := fields[2][i]
		for _, protocol := range []string{"v1:", "v2:", "any:"} {
			addr = strings.TrimPrefix(addr, protocol)
		}
		list = append(list, Sharer{client: fields[0][i], Owner: fields[1][i], Addr: addr})
	}
	return C.GoString(&texts[0][0]), list, nil
}

// Evict ends the lock of an owner.
func (p *Pool) Evict(object string, s *Sharer) error {
	c, free := cStrings(object, s.client, s.Owner)
	defer free()
	return errno(C.object_evict(p.handle, c[0], c[1], c[2]))
}

func cStrings(list ...string) (c []*C.char, free func()) {
	for _, s := range list {
		c = append(c, C.CString(s))
	}
	return c, func() {
		for _, s := range c {
			C.free(unsafe.Pointer(s))
		}
	}
}

// errno returns the error with this negative number, nil for others.
func errno(n C.int) error {
	if n < 0 {
		return unix.Errno(-n)
	}
	return nil
}
