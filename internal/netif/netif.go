// Package netif knows the IP addresses of this machine, which network interfaces belong to its RDMA
// devices, and when that changes.
package netif

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

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
	if s.Addresses, err = addresses(interfaces); err != nil {
		return s, fmt.Errorf("the network addresses cannot be read: %w", err)
	}
	s.RDMA = m.rdma(rdma)
	return s, nil
}

// addresses reads the addresses of all interfaces at once (rtnetlink(7)): for each one alone the
// kernel would list them all.
func addresses(interfaces []net.Interface) (list []Address, err error) {
	dump, err := syscall.NetlinkRIB(unix.RTM_GETADDR, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	messages, err := syscall.ParseNetlinkMessage(dump)
	if err != nil {
		return nil, err
	}
	byIndex := map[uint32]*net.Interface{}
	for i := range interfaces {
		byIndex[uint32(interfaces[i].Index)] = &interfaces[i]
	}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < unix.SizeofIfAddrmsg {
			continue
		}
		i := byIndex[binary.NativeEndian.Uint32(m.Data[4:])] // ifa_index
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, err
		}
		if ip := own(attributes); i != nil && ip.IsValid() { // else it has come in the meantime
			list = append(list, address(ip, i))
		}
	}
	return list, nil
}

// own returns the address that an interface has. IFA_ADDRESS is that of the other end of a
// point-to-point link, which then has IFA_LOCAL, too.
func own(attributes []syscall.NetlinkRouteAttr) (ip netip.Addr) {
	for _, a := range attributes {
		if t := a.Attr.Type; t == unix.IFA_LOCAL || t == unix.IFA_ADDRESS && !ip.IsValid() {
			ip, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return ip
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
