package sys

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// ZoneIndex returns the index of the interface that is the zone of an address, by name or number,
// and 0 if it has none. It returns EADDRNOTAVAIL if there is no such interface.
func ZoneIndex(a netip.Addr) (uint32, error) {
	zone := a.Zone()
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("zone %q: no such network interface: %w", zone, unix.EADDRNOTAVAIL)
	}
	return uint32(i.Index), nil
}

// Zone returns the name of an interface, or its number if it is gone.
func Zone(index uint32) string {
	if i, err := net.InterfaceByIndex(int(index)); err == nil {
		return i.Name
	}
	return strconv.Itoa(int(index))
}
