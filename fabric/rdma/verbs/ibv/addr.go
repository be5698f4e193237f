//go:build cgo

package ibv

// #include "bind.h"
import "C"

import (
	"net/netip"
	"unsafe"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// toC converts an address; the zero AddrPort becomes one that is not valid.
func toC(a netip.AddrPort) (c C.struct_vb_addr, err error) {
	ip := a.Addr()
	if !ip.IsValid() {
		return c, nil
	}
	zone, err := sys.ZoneIndex(ip)
	if err != nil {
		return c, err
	}
	c.scope = C.uint32_t(zone)
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
		ip = ip.WithZone(sys.Zone(uint32(c.scope)))
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(c.port))
}
