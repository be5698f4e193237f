// Package fabrictest helps to test controllers and transports. Watch is put between the two and
// reports violations of the contract of package fabric by either. Queue is a transport in the
// test's own process, on the reactors of a World.
package fabrictest

import (
	"fmt"
	"sync"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// stage is the stage of a request on its path.
type stage uint8

const (
	idle      stage = iota // with the transport, between two commands
	prepared               // with the transport, data may move
	executing              // with the handler
)

var stageNames = [...]string{"idle", "prepared", "executing"}

// Watch returns a handler that passes everything to h and calls report for each violation of the
// contract: a step that is missing or comes twice, contradicting results of Prepare, a zero copy
// that is not ended exactly once, an incomplete CQE, use after Close. The handler under test must
// complete requests through the queue that Open got.
func Watch(h fabric.Handler, report func(violation string)) fabric.Handler {
	return &watcher{h: h, report: report, sessions: make(map[fabric.Session]*watched)}
}

type watcher struct {
	h        fabric.Handler
	report   func(string)
	mu       sync.Mutex // Close of one queue may come while another test goroutine reads
	sessions map[fabric.Session]*watched
}

// watched stands between the handler and a queue.
type watched struct {
	fabric.Queue
	w        *watcher
	requests map[*fabric.Request]stage
	zeroCopy map[*fabric.Request]bool // not ended
	// Addresses that CanSendFrom or CanReceiveInto accepted, by direction.
	accepted [3]map[uint64]bool
	depth    bool
	closed   bool
}

func (w *watcher) failf(format string, args ...any) { w.report(fmt.Sprintf(format, args...)) }

func (w *watcher) find(r *fabric.Request) *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.sessions[r.Session]
	if q == nil {
		w.failf("command %d carries a session that Open did not return", r.SQE.CID())
	}
	return q
}

// move takes a request from one stage to the next.
func (q *watched) move(r *fabric.Request, step string, from, to stage) {
	if is := q.requests[r]; is != from {
		q.w.failf("%s of command %d (%v), which is %s", step, r.SQE.CID(), r.SQE.Opcode(),
			stageNames[is])
	}
	q.requests[r] = to
}

func (w *watcher) Open(queue fabric.Queue) (fabric.Session, error) {
	q := &watched{
		Queue: queue, w: w, requests: make(map[*fabric.Request]stage),
		zeroCopy: make(map[*fabric.Request]bool),
		accepted: [3]map[uint64]bool{fabric.ControllerToHost: {}, fabric.HostToController: {}},
	}
	s, err := w.h.Open(q)
	if err == nil {
		w.mu.Lock()
		w.sessions[s] = q
		w.mu.Unlock()
	}
	return s, err
}

func (w *watcher) Prepare(reqs []*fabric.Request) {
	for _, r := range reqs {
		if q := w.find(r); q != nil {
			q.move(r, "Prepare", idle, prepared)
			if q.closed {
				w.failf("Prepare of command %d after Close", r.SQE.CID())
			}
			if q.zeroCopy[r] {
				w.failf("Prepare of command %d, whose zero copy was not ended", r.SQE.CID())
			}
			for _, m := range q.accepted {
				clear(m)
			}
			if len(r.Segs) > 0 || r.ZeroCopy || r.Dir != fabric.NoData || r.Length != 0 {
				w.failf("command %d was not reset before Prepare", r.SQE.CID())
			}
		}
	}
	before := make([]nvme.SQE, len(reqs))
	for i, r := range reqs {
		before[i] = r.SQE
	}
	w.h.Prepare(reqs)
	for i, r := range reqs {
		switch {
		case r.SQE != before[i]:
			w.failf("Prepare changed the SQE of command %d", r.SQE.CID())
		case !r.Status.OK() && (r.Dir != fabric.NoData || r.Length != 0):
			w.failf("command %d is refused with %v and yet has data", r.SQE.CID(), r.Status)
		case r.Length > r.HostLength:
			w.failf("command %d: %d bytes, the host gave %d", r.SQE.CID(), r.Length, r.HostLength)
		case (r.Length == 0) != (r.Dir == fabric.NoData):
			w.failf("command %d: direction %d and %d bytes", r.SQE.CID(), r.Dir, r.Length)
		case r.ZeroCopy && mem.Length(r.Segs) != int(r.Length):
			w.failf("command %d: %d bytes attached, %d wanted", r.SQE.CID(), mem.Length(r.Segs),
				r.Length)
		case r.Deferred && r.ZeroCopy:
			w.failf("command %d is deferred and has memory", r.SQE.CID())
		case !r.ZeroCopy && len(r.Segs) > 0:
			w.failf("command %d: segments without zero copy", r.SQE.CID())
		case r.ZeroCopy && r.InCapsule:
			w.failf("command %d: zero copy of data in the capsule", r.SQE.CID())
		case r.ZeroCopy:
			w.startZeroCopy(r)
		}
	}
}

// startZeroCopy records that memory was attached to a request.
func (w *watcher) startZeroCopy(r *fabric.Request) {
	q := w.find(r)
	if q == nil {
		return
	}
	q.zeroCopy[r] = true
	if !q.accepted[r.Dir][mem.Addr(r.Segs[0].B)] {
		w.failf("command %d: memory was attached that the queue has not accepted", r.SQE.CID())
	}
}

func (w *watcher) Execute(reqs []*fabric.Request) {
	for _, r := range reqs {
		if q := w.find(r); q != nil {
			q.move(r, "Execute", prepared, executing)
			if r.Deferred {
				w.failf("Execute of command %d, which is deferred", r.SQE.CID())
			}
			if q.closed {
				w.failf("Execute of command %d after Close", r.SQE.CID())
			}
			if r.Status.OK() && mem.Length(r.Segs) != int(r.Length) {
				w.failf("command %d: %d bytes of memory for %d", r.SQE.CID(), mem.Length(r.Segs),
					r.Length)
			}
		}
		r.CQE = nvme.CQE{10: 0xEE, 15: 0xEE} // shows if it is not written
	}
	w.h.Execute(reqs)
}

func (q *watched) Complete(reqs []*fabric.Request) {
	if len(reqs) == 0 {
		q.w.failf("Complete of nothing")
	}
	for _, r := range reqs {
		q.move(r, "Complete", executing, idle)
		switch {
		case r.CQE.CID() != r.SQE.CID():
			q.w.failf("command %d: the CQE names CID %d, not %d", r.SQE.CID(), r.CQE.CID(),
				r.SQE.CID())
		case r.CQE.ReservedSet():
			q.w.failf("command %d: reserved bits of the CQE are set", r.SQE.CID())
		case !r.Status.OK() && r.CQE.Status().OK():
			q.w.failf("command %d was refused with %v and completed successfully", r.SQE.CID(),
				r.Status)
		case r.SQE.Opcode() == nvme.FabricsOpcode && r.SQE.FabricsType() == nvme.FabricsConnect &&
			r.CQE.Status().OK() && !q.depth:
			q.w.failf("a successful Connect without SetDepth")
		}
	}
	q.Queue.Complete(reqs)
}

func (q *watched) Resume(r *fabric.Request) {
	if is := q.requests[r]; is != prepared || !r.Deferred {
		q.w.failf("Resume of command %d, which is %s and deferred: %v", r.SQE.CID(),
			stageNames[is], r.Deferred)
	}
	if r.ZeroCopy {
		q.w.startZeroCopy(r)
	}
	q.Queue.Resume(r)
}

func (q *watched) SetDepth(depth int, p fabric.Peer, c fabric.Claim) error {
	if depth < 2 || depth > q.Info().MaxDepth {
		q.w.failf("SetDepth(%d), the transport takes 2 to %d", depth, q.Info().MaxDepth)
	}
	q.depth = true
	return q.Queue.SetDepth(depth, p, c)
}

func (q *watched) Allow() error {
	if !q.depth {
		q.w.failf("Allow before SetDepth")
	}
	return q.Queue.Allow()
}

func (q *watched) CanSendFrom(segs []mem.Segment) bool {
	ok := q.Queue.CanSendFrom(segs)
	if ok && len(segs) > 0 {
		q.accepted[fabric.ControllerToHost][mem.Addr(segs[0].B)] = true
	}
	return ok
}

func (q *watched) CanReceiveInto(segs []mem.Segment) bool {
	ok := q.Queue.CanReceiveInto(segs)
	if ok && len(segs) > 0 {
		q.accepted[fabric.HostToController][mem.Addr(segs[0].B)] = true
	}
	return ok
}

func (q *watched) HandOverBuffers(r *fabric.Request) (free func()) {
	if is := q.requests[r]; is != executing {
		q.w.failf("HandOverBuffers of command %d, which is %s", r.SQE.CID(), stageNames[is])
	}
	inner := q.Queue.HandOverBuffers(r)
	if inner == nil {
		return nil
	}
	if len(r.Segs) > 0 {
		q.w.failf("command %d has memory after HandOverBuffers", r.SQE.CID())
	}
	freed := false
	return func() {
		if freed {
			q.w.failf("memory of command %d that was handed over is freed twice", r.SQE.CID())
		}
		freed = true
		inner()
	}
}

func (w *watcher) Abandon(r *fabric.Request) {
	if q := w.find(r); q != nil {
		q.move(r, "Abandon", prepared, idle)
	}
	w.h.Abandon(r)
}

func (w *watcher) EndZeroCopy(r *fabric.Request) {
	q := w.find(r)
	switch {
	case q == nil:
	case !r.ZeroCopy:
		w.failf("EndZeroCopy of command %d, which has no zero copy", r.SQE.CID())
	case !q.zeroCopy[r]:
		w.failf("EndZeroCopy of command %d, a second one", r.SQE.CID())
	case q.requests[r] != idle:
		w.failf("EndZeroCopy of command %d, which is %s", r.SQE.CID(), stageNames[q.requests[r]])
	default:
		delete(q.zeroCopy, r)
	}
	w.h.EndZeroCopy(r)
}

func (w *watcher) Sent(r *fabric.Request) {
	q := w.find(r)
	switch {
	case q == nil:
	case q.requests[r] != idle:
		w.failf("Sent of command %d, which is %s", r.SQE.CID(), stageNames[q.requests[r]])
	case q.closed:
		w.failf("Sent of command %d after Close", r.SQE.CID())
	}
	w.h.Sent(r)
}

func (w *watcher) WriterWaits(r *fabric.Request) bool {
	if q := w.find(r); q != nil && !q.zeroCopy[r] {
		w.failf("WriterWaits of command %d, which has no zero copy", r.SQE.CID())
	}
	return w.h.WriterWaits(r)
}

func (w *watcher) Close(s fabric.Session) {
	w.mu.Lock()
	q := w.sessions[s]
	w.mu.Unlock()
	switch {
	case q == nil:
		w.failf("Close of a session that Open did not return")
	case q.closed:
		w.failf("Close called twice")
	default:
		q.closed = true
	}
	w.h.Close(s)
}
