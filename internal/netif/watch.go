package netif

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

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
