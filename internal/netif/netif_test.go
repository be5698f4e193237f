package netif

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestRDMA: the interfaces of devices with GIDs, and of one without.
func TestRDMA(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"rxe0/ports/1/gid_attrs/ndevs/0": "eth0\n", "rxe0/ports/1/gid_attrs/ndevs/1": "eth0\n",
		"rxe0/ports/2/gid_attrs/ndevs/0": "eth0.5\n",
		"old0/device/net/eth1/mtu":       "1500\n", "old0/ports/1/state": "4: ACTIVE\n",
	} {
		file = filepath.Join(dir, "class/infiniband", file)
		testutil.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
			os.WriteFile(file, []byte(text), 0o644)))
	}
	want := map[string][]string{"rxe0": {"eth0", "eth0.5"}, "old0": {"eth1"}}
	got := (Machine{dir}).rdma([]string{"*"})
	testutil.True(t, reflect.DeepEqual(got, want), "got %v", got)
	delete(want, "old0")
	got = (Machine{dir}).rdma([]string{"rxe0", "none"})
	testutil.True(t, reflect.DeepEqual(got, want), "got %v", got)
}

// TestWatch: changes of addresses and links are noticed, and the new state is read.
func TestWatch(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	changed := make(chan struct{}, 1)
	stop := testutil.Value(Linux().Watch(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}))(t)
	defer stop()
	for _, step := range []struct{ ip, want string }{
		{"addr add 10.9.8.7/24 dev br0", "10.9.8.7 down"},
		{"link set br0 up", "10.9.8.7 up"},
		{"addr add fd00::5/64 dev br0 nodad", "10.9.8.7 up fd00::5 up"},
		{"addr del 10.9.8.7/24 dev br0", "fd00::5 up"},
		{"link del br0", ""},
	} {
		testutil.IP(t, step.ip)
		until(t, changed, step.want)
	}
}

// TestDroppedEvents: events dropped by the kernel count as a change.
func TestDroppedEvents(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	f := testutil.Value(open(unix.NETLINK_ROUTE, unix.RTMGRP_IPV4_IFADDR))(t)
	defer f.Close()
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) // the minimum
		})
	}
	testutil.Must(t, err)
	var commands []string
	for i := range 50 {
		commands = append(commands, fmt.Sprintf("addr add 10.9.8.%d/32 dev br0", i+1))
	}
	testutil.IP(t, commands...)
	changed := make(chan struct{}, 100)
	go read(f, func([]byte) bool { return false }, func() { changed <- struct{}{} })
	testutil.Receive(t, "a change", changed)
}

// until waits for a change after which br0 has these addresses, apart from link-local ones.
func until(t *testing.T, changed <-chan struct{}, want string) {
	t.Helper()
	for {
		testutil.Receive(t, "a change to "+want, changed)
		s, err := Linux().Read()
		var got []string
		for _, a := range s.Addresses {
			switch {
			case a.Interface != "br0" || a.IsLinkLocalUnicast() && a.Zone() == "br0":
			case a.Up:
				got = append(got, a.String(), "up")
			default:
				got = append(got, a.String(), "down")
			}
		}
		if err == nil && strings.Join(got, " ") == want {
			return
		}
	}
}

// TestManyInterfaces: the addresses of many interfaces are read at once and assigned to their
// interfaces.
func TestManyInterfaces(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	const n = 250
	commands := []string{"addr add 10.8.0.1 peer 10.8.0.2/32 dev lo"}
	for i := range n {
		commands = append(commands, fmt.Sprintf("link add d%d type bridge", i),
			fmt.Sprintf("addr add 10.9.0.%d/32 dev d%[1]d", i))
	}
	testutil.IP(t, commands...)
	s, err := Linux().Read()
	testutil.MustTrue(t, err == nil && len(s.Addresses) == n+1, "%d addresses, %v",
		len(s.Addresses), err)
	// Reading the addresses of each interface alone would list all of them each time.
	least := testing.AllocsPerRun(1, func() { _, err = Linux().Read() })
	if most := float64(50 * n); err != nil || least > most {
		t.Errorf("%v allocations for %d interfaces, more than %v, %v", least, n, most, err)
	}
	a := s.Addresses[0]
	testutil.True(t, a.Addr.String() == "10.8.0.1" && a.Interface == "lo" && !a.Up, "%+v", a)
	for i, a := range s.Addresses[1:] {
		testutil.True(t, a.Addr.String() == fmt.Sprint("10.9.0.", i) &&
			a.Interface == fmt.Sprint("d", i) && !a.Up, "%+v", a)
	}
}
