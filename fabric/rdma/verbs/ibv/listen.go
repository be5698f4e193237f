//go:build cgo

package ibv

/*
#include <stdlib.h>
#include "bind.h"
*/
import "C"

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// portTries is the number of attempts at :: to find a port that is free for both families.
const portTries = 8

func (c *cm) Listen(addr netip.AddrPort, backlog int, tos uint8) (verbs.ID, error) {
	a := addr.Addr().Unmap()
	if !a.IsValid() {
		return nil, fail("rdma_bind_addr", unix.EINVAL, "without an address")
	}
	for try := 1; ; try++ {
		i, err := c.create()
		if err != nil {
			return nil, err
		}
		if err = c.listen(i, addr, backlog, tos); err == nil {
			return i, nil
		}
		_ = i.Destroy() // the error of listening is more useful
		if addr.Port() != 0 || !errors.Is(err, unix.EADDRINUSE) || try == portTries {
			return nil, err
		}
	}
}

// listen makes a new ID listen. At :: a second C ID listens for IPv4, because an iWARP device
// serves only one family per listener.
func (c *cm) listen(i *id, addr netip.AddrPort, backlog int, tos uint8) error {
	a := addr.Addr().Unmap()
	if err := bindListen(i.c, netip.AddrPortFrom(a, addr.Port()), backlog, tos); err != nil {
		if !a.IsUnspecified() && errors.Is(err, unix.EADDRNOTAVAIL) && c.has(a) {
			// The kernel also returns this if a listener on the port has all addresses.
			return fail("rdma_bind_addr", unix.EADDRINUSE, "%v", addr)
		}
		return noDevice(err, unix.ENODEV, unix.EADDRNOTAVAIL)
	}
	c.mu.Lock()
	i.refresh()
	c.mu.Unlock()
	switch {
	case a == netip.IPv6Unspecified():
		return c.listenV4(i, backlog, tos)
	case !a.IsUnspecified() && i.Device() == nil:
		// The kernel accepts a loopback address for listening, but no host can connect to it.
		return noDevice(fail("rdma_bind_addr", unix.ENODEV, "%v", addr), unix.ENODEV)
	}
	return nil
}

// listenV4 makes a listener at :: listen for IPv4 on the same port.
func (c *cm) listenV4(i *id, backlog int, tos uint8) error {
	v4, err := c.createC()
	if err != nil {
		return err
	}
	c.mu.Lock()
	i.v4 = v4
	c.ids[v4] = i
	c.mu.Unlock()
	return bindListen(v4, netip.AddrPortFrom(netip.IPv4Unspecified(), i.Local().Port()), backlog,
		tos)
}

// bindListen binds and listens. A used port is EADDRINUSE, or EADDRNOTAVAIL at one address.
func bindListen(cid *C.struct_rdma_cm_id, addr netip.AddrPort, backlog int, tos uint8) error {
	a, err := toC(addr)
	if err != nil {
		return err
	}
	var call *C.char
	errno := unix.Errno(C.vb_listen(cid, &a, C.int(backlog), C.uint8_t(tos), &call))
	if errno == unix.EADDRNOTAVAIL && addr.Addr().IsUnspecified() {
		errno = unix.EADDRINUSE // the port is in use on one of the addresses
	}
	if errno == 0 {
		return nil
	}
	return fail(C.GoString(call), errno, "%v", addr)
}

// has reports whether an ID can be bound to the address, on any port.
func (c *cm) has(addr netip.Addr) bool {
	cid, err := c.createC()
	if err != nil {
		return false
	}
	defer C.rdma_destroy_id(cid)
	return bindListen(cid, netip.AddrPortFrom(addr, 0), 1, 0) == nil
}
