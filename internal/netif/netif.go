// Package netif reads the IP addresses of this machine and the network interfaces of its RDMA
// devices, and watches them for changes.
package netif

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
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

// addresses reads the addresses of all interfaces, which the kernel would list for one, too.
func addresses(interfaces []net.Interface) (list []Address, err error) {
	found, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // by a change, which Watch sees
		return nil, err
	}
	byIndex := map[int]*net.Interface{}
	for i := range interfaces {
		byIndex[interfaces[i].Index] = &interfaces[i]
	}
	for _, a := range found {
		i := byIndex[a.LinkIndex]
		if i == nil || a.IPNet == nil { // the interface is new
			continue
		}
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(i.Name)
		}
		if ip.IsValid() {
			list = append(list, Address{ip, i.Name, i.Flags&net.FlagUp != 0})
		}
	}
	return list, nil
}

// rdma lists the interfaces of RDMA devices: those of their GIDs (sysfs-class-infiniband in
// Documentation/ABI/stable) or, for iWARP on older kernels, of the same PCI function.
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

// kernelEvents is the group of NETLINK_KOBJECT_UEVENT for kernel events (lib/kobject_uevent.c).
const kernelEvents = 1

// rdmaDevice is part of the event for an RDMA device that is added or removed.
var rdmaDevice = []byte("SUBSYSTEM=infiniband\x00")

// sources are the sockets that report changes. The content of a report does not matter: the state
// is always read as a whole, even if the kernel had to drop events.
var sources = []struct {
	protocol int
	groups   uint32
	relevant func(event []byte) bool
}{
	{
		unix.NETLINK_ROUTE, unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR,
		func([]byte) bool { return true },
	},
	{
		unix.NETLINK_KOBJECT_UEVENT, kernelEvents,
		func(event []byte) bool { return bytes.Contains(event, rdmaDevice) },
	},
}

// Watch calls changed, which must not block, whenever the state may have changed, until stop is
// called. It may miss RDMA devices in containers. After an error nothing is watched.
func (Machine) Watch(changed func()) (stop func(), err error) {
	var files []*os.File
	var wg sync.WaitGroup
	stop = func() {
		for _, f := range files {
			_ = f.Close()
		}
		wg.Wait()
	}
	for _, s := range sources {
		f, err := open(s.protocol, s.groups)
		if err != nil {
			stop()
			return nil, fmt.Errorf("changes of network interfaces are not noticed at once: %w", err)
		}
		files = append(files, f)
		wg.Go(func() { read(f, s.relevant, changed) })
	}
	return stop, nil
}

// open makes a netlink socket (netlink(7)).
func open(protocol int, groups uint32) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		protocol)
	if err != nil {
		return nil, os.NewSyscallError("netlink socket", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
	if err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("netlink bind", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// read reads events until the file is closed. Longer ones are truncated.
func read(f *os.File, relevant func([]byte) bool, changed func()) {
	event := make([]byte, 8<<10)
	for {
		n, err := f.Read(event)
		switch {
		case errors.Is(err, unix.ENOBUFS), err == nil && relevant(event[:n]):
			changed()
		case err != nil:
			return
		}
	}
}
