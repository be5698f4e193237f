//go:build cgo

package ibv

// #include "bind.h"
import "C"

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// toC converts an address; the zero AddrPort becomes one that is not valid.
func toC(a netip.AddrPort) (c C.struct_vb_addr, err error) {
	ip := a.Addr()
	if !ip.IsValid() {
		return c, nil
	}
	if zone := ip.Zone(); zone != "" {
		if ifi, err := net.InterfaceByName(zone); err == nil {
			c.scope = C.uint32_t(ifi.Index)
		} else if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			c.scope = C.uint32_t(n)
		} else {
			return c, fmt.Errorf("address %v: no network interface %q: %w", ip, zone, unix.ENODEV)
		}
	}
	ip = ip.Unmap()
	c.valid = 1
	c.port = C.uint16_t(a.Port())
	if b := ip.AsSlice(); copy(bytesOf(&c.addr), b) == 16 {
		c.is6 = 1
	}
	return c, nil
}

// bytesOf returns the memory of a C array.
func bytesOf[T any](array *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(array)), unsafe.Sizeof(*array))
}

// fromC converts an address. The zone is the interface, or its number if it is gone.
func fromC(c *C.struct_vb_addr) netip.AddrPort {
	if c.valid == 0 {
		return netip.AddrPort{}
	}
	b := bytesOf(&c.addr)
	ip := netip.AddrFrom16([16]byte(b))
	if c.is6 == 0 {
		ip = netip.AddrFrom4([4]byte(b[:4]))
	} else if c.scope != 0 && !ip.Is4In6() {
		zone := strconv.FormatUint(uint64(c.scope), 10)
		if ifi, err := net.InterfaceByIndex(int(c.scope)); err == nil {
			zone = ifi.Name
		}
		ip = ip.WithZone(zone)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(c.port))
}
