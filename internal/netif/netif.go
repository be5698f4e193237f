// Package netif reads the IP addresses of this machine and the network interfaces of its RDMA
// devices, and watches them for changes.
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

// State is the network state of a machine at one time.
type State struct {
	Addresses []Address
	// RDMA has the network interfaces of the RDMA devices requested from Read.
	RDMA map[string][]string
}

// Address is an address of a network interface. A link-local IPv6 address has the interface as its
// zone. An IPv6 address that is still being checked for duplicates cannot be bound to.
type Address struct {
	netip.Addr
	Interface string
	// Up: the interface is switched on. It may be without a carrier.
	Up bool
}

// Machine is this machine, in the network namespace of the process.
type Machine struct{ sysfs string }

// Linux returns the machine on which this program runs.
func Linux() Machine { return Machine{"/sys"} }

// Read returns the current state. It includes the RDMA devices with the given names, or all with
// "*". Each device has many files, which are read one by one.
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

// addresses reads the addresses of all interfaces at once (rtnetlink(7)). For a single interface
// the kernel would list them all as well.
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
		if ip := own(attributes); i != nil && ip.IsValid() { // otherwise the interface is new
			list = append(list, address(ip, i))
		}
	}
	return list, nil
}

// own returns the address of an interface. On a point-to-point link IFA_ADDRESS is the address of
// the other end, and IFA_LOCAL is the own address.
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

// rdma lists the network interfaces of the RDMA devices: the interfaces of their GIDs
// (Documentation/ABI/stable/sysfs-class-infiniband) or, for iWARP on older kernels, the interfaces
// of the same PCI function.
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
