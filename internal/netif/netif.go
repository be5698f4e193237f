// Package netif knows the IP addresses of this machine, which network interfaces belong to its RDMA
// devices, and when that changes.
package netif

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// State is what a machine has at a time.
type State struct {
	Addresses []Address
	// RDMA has the network interfaces of the RDMA devices that Read was asked for.
	RDMA map[string][]string
}

// Address is an address of a network interface. A link-local one of IPv6 has the interface as its
// zone. One of IPv6 that is still being checked for duplicates cannot be bound to.
type Address struct {
	netip.Addr
	Interface string
	// Up: the interface was not switched off. It may be without a carrier.
	Up bool
}

// Machine is this machine, in the network namespace of the process.
type Machine struct{ sysfs string }

// Linux is the machine that this program runs on.
func Linux() Machine { return Machine{"/sys"} }

// Read returns what the machine has now. Of RDMA devices it has those with the given names, or all
// with "*": each has many files, which are read one by one.
func (m Machine) Read(rdma ...string) (s State, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return s, fmt.Errorf("the network interfaces cannot be read: %w", err)
	}
	for i := range interfaces {
		list, err := interfaces[i].Addrs()
		if err != nil {
			continue // it has gone in the meantime
		}
		for _, a := range list {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				s.Addresses = append(s.Addresses, address(prefix.Addr(), &interfaces[i]))
			}
		}
	}
	s.RDMA = m.rdma(rdma)
	return s, nil
}

func address(ip netip.Addr, i *net.Interface) Address {
	if ip = ip.Unmap(); ip.Is6() && ip.IsLinkLocalUnicast() {
		ip = ip.WithZone(i.Name)
	}
	return Address{Addr: ip, Interface: i.Name, Up: i.Flags&net.FlagUp != 0}
}

// rdma lists the network interfaces of the RDMA devices: those of their GIDs
// (Documentation/ABI/stable/sysfs-class-infiniband), with older kernels for iWARP the ones of the
// same PCI function.
func (m Machine) rdma(patterns []string) map[string][]string {
	var devices []string
	for _, p := range patterns {
		found, _ := filepath.Glob(filepath.Join(m.sysfs, "class/infiniband", p))
		devices = append(devices, found...)
	}
	all := map[string][]string{}
	for _, d := range devices {
		var names []string
		files, _ := filepath.Glob(filepath.Join(d, "ports/*/gid_attrs/ndevs/*"))
		for _, f := range files {
			if name := sys.Attribute(f); name != "" {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			files, _ = filepath.Glob(filepath.Join(d, "device/net/*"))
			for _, f := range files {
				names = append(names, filepath.Base(f))
			}
		}
		slices.Sort(names)
		all[filepath.Base(d)] = slices.Compact(names)
	}
	return all
}
