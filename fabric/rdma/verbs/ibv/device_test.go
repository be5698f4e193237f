//go:build cgo

package ibv

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbsconf"
)

// breakCommands makes the kernel refuse all commands for the device of a queue pair until restore
// is called: the descriptor of commands is then the read end of a pipe.
func breakCommands(vqp verbs.QP) (restore func()) {
	var pipe [2]int
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	commands := int(vqp.(*qp).c.context.cmd_fd)
	saved, err := unix.FcntlInt(uintptr(commands), unix.F_DUPFD_CLOEXEC, 0)
	must(err)
	must(unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	must(unix.Dup3(pipe[0], commands, unix.O_CLOEXEC))
	return func() {
		must(unix.Dup3(saved, commands, unix.O_CLOEXEC))
		for _, fd := range []int{saved, pipe[0], pipe[1]} {
			must(unix.Close(fd))
		}
	}
}

// addresses lists one address of each family for every RDMA device of this machine. It finds them
// by trying to listen.
func addresses(t *testing.T) []netip.Addr {
	t.Helper()
	c, err := New().NewCM()
	if errors.Is(err, verbs.ErrNoDevice) {
		t.Skipf("needs an RDMA device: %v", err)
	}
	testutil.Must(t, err)
	defer func() { testutil.Check(t, c.Close()) }()
	ifaces := testutil.Value(net.Interfaces())(t)
	type key struct {
		dev verbs.Device
		v6  bool
	}
	seen := map[key]bool{}
	var list []netip.Addr
	for _, ifi := range ifaces {
		addrs := testutil.Value(ifi.Addrs())(t)
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP)
			testutil.MustTrue(t, ok, "interface %s has address %v", ifi.Name, a)
			if ip = ip.Unmap(); ip.IsLinkLocalUnicast() && ip.Is6() {
				ip = ip.WithZone(ifi.Name)
			}
			l, err := c.Listen(netip.AddrPortFrom(ip, 0), 1, 0)
			if errors.Is(err, verbs.ErrNoDevice) {
				continue
			}
			testutil.Must(t, err)
			if k := (key{l.Device(), ip.Is6()}); !seen[k] {
				seen[k] = true
				list = append(list, ip)
			}
			testutil.Must(t, l.Destroy())
		}
	}
	if len(list) == 0 {
		t.Skip("needs a network interface with an RDMA device and an address")
	}
	return list
}

// openFiles counts the descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	list := testutil.Value(os.ReadDir("/proc/self/fd"))(t)
	return len(list)
}

func TestConformance(t *testing.T) {
	for _, addr := range addresses(t) {
		p := New()
		before := 0
		t.Run(addr.String(), func(t *testing.T) {
			t.Run("first", func(t *testing.T) { // opens the device, which stays open
				verbsconf.Run(t, verbsconf.Setup{
					A: p, B: p, AddrA: addr, FailDestroy: breakCommands,
				})
			})
			before = openFiles(t)
			t.Run("again", func(t *testing.T) {
				verbsconf.Run(t, verbsconf.Setup{
					A: p, B: New(), AddrA: addr, FailDestroy: breakCommands,
				})
			})
			if after := openFiles(t); after > before {
				t.Errorf("%d open files after the second run, %d before", after, before)
			}
		})
	}
}

// TestNoDevice checks the errors on a machine without RDMA.
func TestNoDevice(t *testing.T) {
	if _, err := os.Stat("/dev/infiniband/rdma_cm"); err == nil {
		t.Skip("needs a machine without /dev/infiniband/rdma_cm")
	}
	c, err := New().NewCM()
	testutil.MustTrue(t, errors.Is(err, verbs.ErrNoDevice), "NewCM: %v, %v, want ErrNoDevice", c,
		err)
	t.Log(err)
	if list, err := New().Devices(); len(list) > 0 || err != nil &&
		!errors.Is(err, verbs.ErrNoDevice) {
		t.Fatalf("Devices: %v, %v", list, err)
	} else {
		t.Log(err)
	}
}

// TestRemoval removes the device named by NVMF_TEST_REMOVE while a listener is on it. It is for a
// lab that can lose a device.
func TestRemoval(t *testing.T) {
	name := os.Getenv("NVMF_TEST_REMOVE")
	if name == "" {
		t.Skip("needs NVMF_TEST_REMOVE, the name of a soft RDMA device to remove")
	}
	addr := addresses(t)[0]
	p := New()
	c := testutil.Value(p.NewCM())(t)
	l := testutil.Value(c.Listen(netip.AddrPortFrom(addr, 0), 1, 0))(t)
	w := testutil.Value(c.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), 0), 1, 0))(t)
	events := make(chan verbs.Event)
	go func() {
		for {
			ev, err := c.Next()
			if err != nil {
				close(events)
				return
			}
			events <- ev
		}
	}()
	removed := make(chan error, 1)
	go func() { removed <- exec.Command("rdma", "link", "delete", name).Run() }()
	ev := testutil.Receive(t, "DEVICE_REMOVAL", events)
	testutil.MustTrue(t, ev.Type == verbs.EventDeviceRemoval && ev.ID == l,
		"event %v of %v, want DEVICE_REMOVAL of the listener", ev.Type, ev.ID)
	testutil.Check(t, l.Destroy())
	testutil.Equal(t, testutil.Receive(t, "the end of the removal", removed), nil,
		"rdma link delete %s", name)
	testutil.Check(t, w.Destroy())
	testutil.Check(t, c.Close())
	<-events
}

// TestWatchable: a write wakes the waiter. Closing the duplicate ends the waiting and leaves the
// descriptor open.
func TestWatchable(t *testing.T) {
	r, w, err := os.Pipe()
	testutil.Must(t, err)
	defer w.Close()
	defer r.Close()
	fd := int(r.Fd()) // blocking from now on
	f, raw, err := watchable(fd, "test")
	testutil.Must(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	testutil.True(t, err == nil && flags&unix.O_NONBLOCK != 0, "flags %#x, %v: want O_NONBLOCK",
		flags, err)
	reads := make(chan int)
	ended := make(chan error, 1)
	go func() {
		var b [1]byte
		ended <- raw.Read(func(uintptr) bool {
			n, err := unix.Read(fd, b[:])
			if err == nil {
				reads <- n
			}
			return false
		})
	}()
	testutil.Value(w.WriteString("x"))(t)
	n := testutil.Receive(t, "the waiter is woken", reads)
	testutil.True(t, n == 1, "read %d bytes, want 1", n)
	testutil.Check(t, f.Close())
	testutil.True(t, testutil.Receive(t, "closing ends the wait", ended) != nil,
		"the wait ended without an error, although nothing was done")
	testutil.Equal(t, testutil.Err(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), nil,
		"the descriptor was closed")
}

func TestWatchableRefuses(t *testing.T) {
	_, _, err := watchable(-1, "test")
	testutil.True(t, errors.Is(err, unix.EBADF), "error %v, want EBADF", err)
}
