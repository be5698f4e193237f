package target

import (
	"fmt"
	"net/netip"
	"regexp"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestOtherAddress: a queue does not join a controller from an address other than that of the admin
// queue, with or without the Host Identifier, and does not take the identifier of a queue.
func TestOtherAddress(t *testing.T) {
	for _, tr := range []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA} {
		t.Run(tr.String(), func(t *testing.T) {
			r := newHarness(t, 2, ramSubsystem(t, 1))
			h := r.connectHostInfo(1, info(tr))
			for _, remote := range []string{
				"192.0.2.8:50000", "[2001:db8::9]:50000", "[fe80::1%eth0]:50000",
			} {
				qi := info(tr)
				qi.Remote = netip.MustParseAddrPort(remote)
				a := h.ioArgs(2)
				for range 2 {
					c := r.status(r.dialInfo(1, qi), a.command(), nvme.ConnectInvalidParameters)
					if got := c.CQE.Result(); got != 1<<16|16 {
						t.Errorf("result %#x, want that of a CNTLID that does not exist", got)
					}
					a.hostID = [16]byte{} // to be ignored
				}
				want := regexp.MustCompile(" remote=" + regexp.QuoteMeta(remote) +
					" .* other_remote=" + regexp.QuoteMeta(testPeer.String()))
				testutil.True(t, want.MatchString(r.log.String()), "%v is not in the log:\n%s",
					want, r.log)
			}
			h.info.Remote = netip.AddrPortFrom(testPeer.Addr(), testPeer.Port()+1)
			r.ok(h.connectIO(1), rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		})
	}
}

// TestForeignController: a peer with another name or another address gets the same answers for the
// identifier of a foreign controller as for an unused one, with any arguments.
func TestForeignController(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	victims := []*host{
		r.connectHost(1), r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN }),
	}
	try := func(h *host, cntlid uint16, i int, change ...func(*connectArgs)) string {
		qi := info([]nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA}[i%2])
		qi.PortID += uint16(i / 2 % 2)
		a := h.ioArgs([]uint16{1, 2, 0xFFFE}[i/4%3])
		a.cntlid, a.sqsize = cntlid, []uint16{0, 31, 0xFFFF}[i/12%3]
		a.hostID[0] += byte(i / 36 % 2)
		if len(change) == 0 {
			qi.Remote = netip.MustParseAddrPort("192.0.2.8:50000")
		}
		for _, f := range change {
			f(&a)
		}
		q := r.dialInfo(0, qi)
		c := r.do(q, a.command())
		q.HangUp()
		return fmt.Sprintf("%v, %#x", c.CQE.Status(), c.CQE.Result())
	}
	for _, h := range victims {
		for i := range 2 * 2 * 3 * 3 * 2 {
			there, free := try(h, h.cntlid, i), try(h, h.cntlid+7, i)
			testutil.True(t, there == free, "%d from another address: %s, and %s for none", i,
				there, free)
			there, free = try(h, h.cntlid, i, asOther), try(h, h.cntlid+7, i, asOther)
			testutil.True(t, there == free, "%d with another name: %s, and %s for none", i, there,
				free)
		}
	}
}
