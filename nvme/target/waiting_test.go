package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// TestAdmitsInTurns: of very many commands that may go on at once few do in each poll, of all
// namespaces in turns, so that other hosts wait for few of them.
func TestAdmitsInTurns(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 2))
	r.target.SetHostLimits(testHost, qos.Limits{IOPS: 1})
	hosts := r.connectHost(4)
	var all []*fabrictest.Command
	for i := range 100 {
		c := rw(nvme.NVMRead, uint32(i%2+1), 0, 8, make([]byte, 4096))
		all = append(all, r.send(hosts.io[i%4], c))
	}
	r.w.Settle()
	h := r.raw[0]
	waiting := func() (n [2]int) {
		for s := range h.sessions.All() {
			for _, c := range s.cmds[:s.used] {
				if c.waits() {
					n[c.req.SQE.NSID()-1]++
				}
			}
		}
		return n
	}
	r.target.SetHostLimits(testHost, qos.Limits{})
	h.relink()
	before, polls := waiting(), 0
	if n := before[0] + before[1]; n != len(all)-1-qos.AdmitMost || h.Arm() {
		t.Errorf("%d wait after the first turn, and the reactor may sleep: %v", n, h.Arm())
	}
	for ; h.gate.Ready(); polls++ {
		h.Poll(64)
		now := waiting()
		n := before[0] - now[0] + before[1] - now[1]
		testutil.True(t, n <= qos.AdmitMost, "%d commands in one poll", n)
		testutil.True(t, polls != 0 || (now[0] == before[0]) != (now[1] == before[1]),
			"not in turns: %v, before %v", now, before)
		before = now
	}
	testutil.True(t, polls == 3 && before == [2]int{}, "%v wait after %d polls", before, polls)
	r.allDone(all, nvme.Success)
}
