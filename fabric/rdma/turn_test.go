package rdma

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A queue with 128 commands delays the one command of another queue by a turn, not by all of them.
// Each poll serves one turn.
func TestTurns(t *testing.T) {
	for name, tt := range map[string]struct {
		op   nvme.Opcode
		size uint32
		turn int // commands
	}{
		"small":  {opRead, 512, turnCommands},
		"large":  {opRead, 128 << 10, 3},
		"writes": {opWrite, 128 << 10, 3},
	} {
		for srq, size := range map[string]int{"": 0, " SRQ": 2 * srqSlabSlots} {
			t.Run(name+srq, func(t *testing.T) {
				const depth = 128
				m := newManual(t, verbstest.Options{}, Config{SRQSize: size}, ioParam(depth))
				other := m.connect(t, ioParam(2))
				for cid := range uint16(depth) {
					s := m.host.keyed(command(tt.op, cid, 0, tt.size), 0, tt.size)
					m.host.send(&s, nil)
				}
				s := other.keyed(command(opRead, 7, 0, 4096), 0, 4096)
				other.send(&s, nil)
				m.turn()
				if n := int(m.h.Prepared.Load()); n != tt.turn+1 {
					t.Errorf("%d commands have begun, want %d and the other", n, tt.turn)
				}
				testutil.True(t, !m.g.Arm(), "the reactor may sleep although commands wait")
				if cqe, _, ok := other.response(); !ok || !cqe.Status().OK() || cqe.CID() != 7 {
					t.Errorf("the other: %v, %v", cqe.Status(), ok)
				}
				m.turn()
				testutil.Equal(t, int(m.h.Prepared.Load()), 2*tt.turn+1,
					"commands have begun in two polls")
				m.until(t, func() bool { return m.h.Completed.Load() == depth+1 })
			})
		}
	}
}

// Responses that complete at once, after a disk has answered, are also sent in turns.
func TestTurnsOfResponses(t *testing.T) {
	const depth, size = 16, 128 << 10
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(depth))
	hold := m.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpWrite, Hold: true, Times: -1,
	})
	for cid := range uint16(depth) {
		s := m.host.keyed(command(opHoldRead, cid, 0, size), 0, size)
		m.host.send(&s, nil)
	}
	m.until(t, func() bool { return len(m.h.Held) == depth })
	m.h.Release()
	for polls := 1; polls <= 2; polls++ {
		m.turn()
		testutil.Equal(t, m.q.sqSize-m.q.sqFree, 2*3*polls, "work requests after %d polls", polls)
	}
	hold.Release()
	m.until(t, func() bool { return m.q.sqFree == m.q.sqSize })
}

// TestManyEnd: however many queues end together, and however deep they are, a poll takes back some
// of their requests.
func TestManyEnd(t *testing.T) {
	for queues, depth := range map[int]uint16{40: 128, 1: DepthLimit} {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			m := newManual(t, verbstest.Options{}, Config{MaxDepth: int(depth)}, ioParam(depth))
			for range queues - 1 {
				m.connect(t, ioParam(depth))
			}
			for q := range m.g.queues.all() {
				q.fail(errHostLeft)
			}
			for polls, ended := 1, 0; ended < queues; polls++ {
				m.turn()
				ended = int(m.h.Closed.Load())
				testutil.MustTrue(t, ended*int(depth) <= polls*(sendMost+takeMost) &&
					polls <= queues*int(depth)/takeMost, "%d queues end in %d polls", ended, polls)
			}
		})
	}
}
