//go:build cgo

package ibv

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
