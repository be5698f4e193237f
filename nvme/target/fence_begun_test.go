package target

import (
	"cmp"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// preemption is how one host preempts another one.
type preemption struct {
	name   string
	abort  bool
	shared bool // there is no reservation, so the other host keeps its access
}

var preemptions = []preemption{
	{"preempt", false, false}, {"abort", true, false}, {"abort without a reservation", true, true},
}

// hosts connects the host that preempts and the other one, which holds the namespace unless it is
// shared.
func (p *preemption) hosts(r *harness) (a, b *host) {
	a, b = r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], register(2))
	if !p.shared {
		r.ok(b.io[0], acquire(2, nvme.WriteExclusive))
	}
	return a, b
}

// start sends the command that preempts, and waits until reactors know.
func (p *preemption) start(r *harness, a *host) *fabrictest.Command {
	action := nvme.ReservationPreempt
	if p.abort {
		action = nvme.ReservationPreemptAndAbort
	}
	c := r.send(a.io[0], preempt(action, 1, 2, nvme.WriteExclusive))
	a.untilChanged(hasOneRegistrant)
	return c
}

func opIs(op backend.Op) func(*backend.IO) bool {
	return func(io *backend.IO) bool { return io.Op == op }
}

// blocks reads n blocks of namespace 1, also if there is a limit.
func (r *harness) blocks(q *fabrictest.Queue, slba uint64, n uint32) []byte {
	r.t.Helper()
	c := r.send(q, rw(nvme.NVMRead, 1, slba, n, make([]byte, n*512)))
	r.w.Advance(10 * time.Second)
	r.allDone([]*fabrictest.Command{c}, nvme.Success)
	return c.Data
}

// TestPreemptPiece: a command that takes several IOs is preempted while the next one waits at a
// limit: it ends, and the limit has nothing of it.
func TestPreemptPiece(t *testing.T) {
	for _, p := range preemptions {
		for _, kind := range turnsKinds {
			if kind.name == "compare" || kind.name == "verify" && !p.abort {
				continue // it does not wait in between, or still may read
			}
			t.Run(p.name+" during "+kind.name, func(t *testing.T) {
				sub := turnsSubsystem(t, func(dev backend.Device) backend.Device { return dev })
				sub.Namespaces[0].Limits = qos.Limits{IOPS: 1}
				r := newHarness(t, 2, sub)
				a, b := p.hosts(r)
				r.blocks(b.io[0], 0, 1) // opens the channel
				c := r.send(b.io[0], kind.make(1))
				r.w.Advance(time.Second)
				var w *qos.Waiter
				for f := range r.raw[1].shares.Flows.All() {
					w = cmp.Or(w, f.Limits.First())
				}
				testutil.MustTrue(t, w != nil && w.Owner.(*cmd).compound != nil,
					"it does not wait at the limit")
				done := p.start(r, a)
				r.w.Advance(time.Second)
				r.allDone([]*fabrictest.Command{done}, nvme.Success)
				r.allDone([]*fabrictest.Command{c}, nvme.AbortedPreempt)
				testutil.True(t, !w.Listed(), "it waits at the limit still")
			})
		}
	}
}
