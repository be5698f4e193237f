package rdma

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The commands of testHandler. Length is CDW12 in bytes, the place CDW10 in bytes.
const (
	opNothing       nvme.Opcode = 0x00
	opWrite         nvme.Opcode = 0x01
	opRead          nvme.Opcode = 0x02
	opReadFail      nvme.Opcode = 0x10 // a read with a medium error
	opRefused       nvme.Opcode = 0x11 // refused by Prepare
	opHold          nvme.Opcode = 0x12 // completes on letGo
	opZeroCopyRead  nvme.Opcode = 0x20
	opZeroCopyWrite nvme.Opcode = 0x21
	opLeave         nvme.Opcode = 0x30 // completes, then Disconnect
	opConnect       nvme.Opcode = 0x31 // SetDepth
	opHoldWrite     nvme.Opcode = 0x32
	opHoldRead      nvme.Opcode = 0x33
)

// testHandler is a controller with some memory. It checks that every request follows the contract.
type testHandler struct {
	t       testing.TB
	store   *mem.Region
	mu      sync.Mutex // for tests that read from outside
	openErr error
	onSent  func(*fabric.Request)
	opened  int
	closed  int
	queue   fabric.Queue
	held    []*fabric.Request
	phase   map[*fabric.Request]string
	counts  map[string]int
	checks  bool
	// discovery makes Connect create discovery controllers.
	discovery bool
	// unproven: hosts only claim their NQN.
	unproven atomic.Bool
	one      [1]*fabric.Request
	regions  map[mem.RegionID]bool // where the data of writes came
}

func newHandler(t testing.TB) *testHandler {
	r := testutil.Value(mem.Map("test store", 4<<20))(t)
	return &testHandler{
		t: t, store: r, phase: map[*fabric.Request]string{}, counts: map[string]int{}, checks: true,
		regions: map[mem.RegionID]bool{},
	}
}

type testSession struct{ closed bool }

func (h *testHandler) Open(q fabric.Queue) (fabric.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue = q
	if h.openErr != nil {
		return nil, h.openErr
	}
	h.opened++
	return &testSession{}, nil
}

func (h *testHandler) step(r *fabric.Request, to string, from ...string) {
	if !h.checks {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[to]++
	was := h.phase[r]
	for _, f := range from {
		if was == f {
			h.phase[r] = to
			return
		}
	}
	h.t.Errorf("request of command %d: %s after %q", r.SQE.CID(), to, was)
}

func (h *testHandler) Prepare(reqs []*fabric.Request) {
	for _, r := range reqs {
		h.step(r, "prepare", "", "complete", "end zero copy", "abandon")
		if !r.Status.OK() {
			continue
		}
		n := r.SQE.CDW(12)
		if n > r.HostLength {
			r.Status = nvme.DataSGLLengthInvalid
			continue
		}
		attach := func(canUse func([]mem.Segment) bool) {
			off := int(r.SQE.CDW(10))
			b := h.store.Bytes()[off : off+int(n)]
			half := len(b) / 2
			segs := append(r.Segs[:0], mem.Segment{B: b[:half], Region: h.store.ID()},
				mem.Segment{B: b[half:], Region: h.store.ID()})
			if canUse(segs) {
				r.Segs, r.ZeroCopy = segs, true
			}
		}
		switch r.SQE.Opcode() {
		case opWrite, opHoldWrite:
			r.Dir, r.Length = fabric.HostToController, n
		case opRead, opReadFail, opHoldRead:
			r.Dir, r.Length = fabric.ControllerToHost, n
		case opZeroCopyRead:
			r.Dir, r.Length = fabric.ControllerToHost, n
			attach(r.Queue.CanSendFrom)
		case opZeroCopyWrite:
			r.Dir, r.Length = fabric.HostToController, n
			if !r.InCapsule {
				attach(r.Queue.CanReceiveInto)
			}
		case opRefused:
			r.Status = nvme.LBAOutOfRange | nvme.DNR
		}
	}
}

func (h *testHandler) Execute(reqs []*fabric.Request) {
	for _, r := range reqs {
		h.step(r, "execute", "prepare")
		st := r.Status
		off := int(r.SQE.CDW(10))
		switch op := r.SQE.Opcode(); {
		case !st.OK(), r.ZeroCopy:
		case op == opWrite, op == opZeroCopyWrite:
			for _, s := range r.Segs {
				if h.checks {
					h.mu.Lock()
					h.regions[s.Region] = true
					h.mu.Unlock()
				}
				off += copy(h.store.Bytes()[off:], s.B)
			}
		case op == opRead, op == opZeroCopyRead:
			for _, s := range r.Segs {
				off += copy(s.B, h.store.Bytes()[off:])
			}
		case op == opReadFail:
			for _, s := range r.Segs {
				copy(s.B, "secret of another host")
			}
			st = nvme.UnrecoveredReadError
		case op == opHold, op == opHoldWrite, op == opHoldRead:
			h.mu.Lock()
			h.held = append(h.held, r)
			h.mu.Unlock()
			continue
		case op == opConnect:
			peer := fabric.Allowed
			if h.discovery {
				peer = fabric.Discovery
			}
			claim := fabric.Claim{
				Host: fmt.Sprintf("%p", r.Queue), Proven: !h.unproven.Load(), Admin: true,
			}
			if host := r.SQE.CDW(11); host != 0 { // one of many queues
				claim.Host, claim.Admin = fmt.Sprint(host), false
			}
			if err := r.Queue.SetDepth(int(r.SQE.CDW(10)), peer, claim); err != nil {
				st = nvme.ConnectInvalidParameters
			}
		}
		h.complete(r, st)
		if r.SQE.Opcode() == opLeave {
			r.Queue.Disconnect(fmt.Errorf("asked to"))
		}
	}
}

func (h *testHandler) complete(r *fabric.Request, st nvme.Status) {
	h.step(r, "complete", "execute")
	r.CQE.Fill(uint64(r.SQE.CDW(13)), 0, r.SQE.CID(), st)
	h.one[0] = r
	r.Queue.Complete(h.one[:])
}

func (h *testHandler) Abandon(r *fabric.Request) { h.step(r, "abandon", "prepare") }
func (h *testHandler) EndZeroCopy(r *fabric.Request) {
	h.step(r, "end zero copy", "complete", "abandon")
}

func (h *testHandler) Sent(r *fabric.Request) {
	if h.onSent != nil {
		h.onSent(r)
	}
}
func (h *testHandler) WriterWaits(*fabric.Request) bool { return false }

func (h *testHandler) Close(s fabric.Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	testutil.True(h.t, !s.(*testSession).closed, "a session was closed twice")
	s.(*testSession).closed = true
	h.closed++
}

func (h *testHandler) count(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch what {
	case "opened":
		return h.opened
	case "closed":
		return h.closed
	case "held":
		return len(h.held)
	}
	return h.counts[what]
}
