package target

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestDiscoveryLogIsExact: a host is told of the subsystems that it can connect to through the port
// that it asks, at all ports where it can, and of no port where it finds nothing else.
func TestDiscoveryLogIsExact(t *testing.T) {
	subs := []subsystems.Config{
		{NQN: testSub + "a", Hosts: []string{testHost}, Listeners: []string{"1", "2"}},
		{NQN: testSub + "b", Hosts: []string{otherHost}, Listeners: []string{"1", "3"}},
		{NQN: testSub + "c", AllowAnyHost: true, Listeners: []string{"2"}},
		{NQN: testSub + "d"},
	}
	r := newHarness(t, 1, subs...)
	const ports = 4
	for id := range uint16(ports) {
		p := port(id+1, nvme.TransportTCP, "192.0.2.1:4420")
		p.Listener = fmt.Sprint(p.ID)
		r.must(r.target.AddPort(p))
	}
	connects := func(port uint16, nqn string) bool {
		qi := info(nvme.TransportTCP)
		qi.PortID = port
		q := r.dialInfo(0, qi)
		c := r.do(q, adminArgs(nqn).command())
		q.HangUp()
		r.w.Settle()
		return c.CQE.Status().OK()
	}
	for asked := uint16(1); asked <= ports; asked++ {
		_, list := through(r, asked, nvme.DiscoveryNQN).discoveryLog()
		shown, self, found := map[string]bool{}, map[uint16]bool{}, map[uint16]bool{asked: true}
		for _, e := range list {
			nqn, err := nvme.ParseNQN(&e.SUBNQN)
			r.must(err)
			if nqn != nvme.DiscoveryNQN {
				shown[fmt.Sprint(nqn, e.PORTID)], found[e.PORTID] = true, true
				continue
			}
			self[e.PORTID] = true
			// The first two list each other, and only the second one has c.
			testutil.True(t, (e.EFLAGS&nvme.EFLAGSDuplicate != 0) == (asked > 2),
				"asked through %d: flags %#x", asked, e.EFLAGS)
		}
		for _, s := range subs {
			for p := uint16(1); p <= ports; p++ {
				want := connects(asked, s.NQN) && connects(p, s.NQN)
				testutil.True(t, shown[fmt.Sprint(s.NQN, p)] == want,
					"asked through %d, %s at %d is shown: %v", asked, s.NQN, p, !want)
			}
		}
		testutil.True(t, maps.Equal(self, found),
			"asked through %d, the service is shown at %v, and others at %v", asked, self, found)
	}
}
