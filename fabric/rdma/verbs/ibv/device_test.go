//go:build cgo

package ibv

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbsconf"
)

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
