package rdma

import (
	"errors"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A host that holds all memory and takes no responses, or does not let its data be read, ends
// before a waiting command of another host fails.
func TestHolderEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		op   nvme.Opcode
		hold verbstest.Fault
	}{
		"no receives": {opRead, verbstest.Fault{Ops: verbstest.OpSend, Times: 1}},
		"no READs":    {opWrite, verbstest.Fault{Ops: verbstest.OpRead, Times: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, verbstest.Options{}, Config{DrainTimeout: time.Minute}, ioParam(8))
			m.loop.clock = 1
			victim := m.connect(t, ioParam(8))
			tt.hold.Host, tt.hold.Hold = "target", true
			m.f.Inject(tt.hold)
			for cid := range uint16(4) {
				s := m.host.keyed(command(tt.op, cid, 0, 1<<20), 0, 1<<20)
				m.host.send(&s, nil)
				m.until(t, func() bool { return m.g.cfg.Memory.Available() == (3-int(cid))<<20 })
			}
			s := victim.keyed(command(opRead, 9, 0, 4096), 0, 4096)
			victim.send(&s, nil)
			m.until(t, m.g.cfg.Memory.HasWaiters)
			for waited := int64(0); !m.q.failed; waited += m.g.t.cfg.tickInterval() {
				testutil.MustTrue(t, waited <= DefaultMemoryTimeout.Nanoseconds()/2,
					"the host keeps the memory")
				m.loop.clock += m.g.t.cfg.tickInterval()
				m.g.tick()
			}
			testutil.True(t, errors.Is(m.q.reason, errHolds), "the queue ends because %v",
				m.q.reason)
			m.until(t, func() bool { return m.q.state >= queueDestroyed })
			m.until(t, func() bool { return !m.g.cfg.Memory.HasWaiters() })
			m.turn()
			cqe, _, ok := victim.response()
			testutil.True(t, ok && cqe.Status().OK(), "the other host: %v, %v", cqe.Status(), ok)
		})
	}
}

// A host that lets a response leave now and then cannot keep the rest in flight forever. A host
// that takes its responses in time is not ended.
func TestTrickleEnds(t *testing.T) {
	const inFlight = 32
	for name, tt := range map[string]struct {
		free   int // responses that leave from one tick to the next
		reason error
	}{
		"one at a time": {1, errStuck}, "all": {inFlight, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, verbstest.Options{}, Config{}, ioParam(64))
			var held []*verbstest.Injection
			send := func() {
				held = append(held, m.f.Inject(verbstest.Fault{
					Host: "target", Ops: verbstest.OpSend, Hold: true,
				}))
				s := command(opNothing, uint16(len(held)), 0, 0)
				m.host.send(&s, nil)
				m.turn()
			}
			for range inFlight {
				send()
			}
			for range inFlight {
				m.g.tick()
				if m.loop.clock += m.g.t.cfg.tickInterval(); m.q.failed {
					break
				}
				for range tt.free {
					held[0].Release()
					held = held[1:]
					_, _, ok := m.host.response()
					testutil.MustTrue(t, ok, "%+v", m.host.bad)
					send()
				}
			}
			testutil.True(t, errors.Is(m.q.reason, tt.reason), "the queue ends because %v, want %v",
				m.q.reason, tt.reason)
			for _, i := range held {
				i.Release()
			}
		})
	}
}
