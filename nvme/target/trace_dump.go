package target

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// A dump keeps the recorded commands of a queue for later, when the queue fails or a command has
// taken too long. The size of all dumps, and their rate, do not depend on peers.
const (
	// maxDumps is the most dumps at a time, maxDumpsOfPeer the most of queues from one network, and
	// dumpsFor how long a dump is kept.
	maxDumps, maxDumpsOfPeer = 32, 8
	dumpsFor                 = 24 * time.Hour
	// dumpEvery is the least time in which a network makes maxDumpsOfPeer of them.
	dumpEvery = 10 * time.Second
	// watchdogAfter is how long a command may take, in nanoseconds: hosts give up after 30 s
	// (Linux io_timeout). watchdogEvery is how often the queue is kept then.
	watchdogAfter = int64(5e9)
	watchdogEvery = int64(60e9)

	dumpHint = "nvmf-target trace --dumps shows its last commands"
)

// failure is the end of a controller that nobody has asked for.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

// traceDumps are the dumps of all reactors.
type traceDumps struct {
	mu   sync.Mutex
	list []observed.TraceQueue // oldest first
}

// allows reports whether a queue of a peer may be kept now.
func (d *traceDumps) allows(peer netip.Addr, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire(now)
	oldest, n := d.of(peer)
	return n < maxDumpsOfPeer || now.Sub(d.list[oldest].Time) >= dumpEvery
}

// of returns the index of the oldest dump of the network of a peer, and how many it has. The caller
// holds d.mu.
func (d *traceDumps) of(peer netip.Addr) (oldest, n int) {
	network := subnet.Of(peer)
	for i, q := range slices.Backward(d.list) {
		if subnet.Of(q.Remote.Addr()) == network {
			oldest = i
			n++
		}
	}
	return oldest, n
}

// expire drops the dumps that have been kept for dumpsFor. The caller holds d.mu.
func (d *traceDumps) expire(now time.Time) {
	d.list = slices.DeleteFunc(d.list,
		func(q observed.TraceQueue) bool { return now.Sub(q.Time) >= dumpsFor })
}

// add keeps a queue in place of older ones. Other reactors may have added some since allows.
func (d *traceDumps) add(q observed.TraceQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if oldest, n := d.of(q.Remote.Addr()); n >= maxDumpsOfPeer {
		d.list = slices.Delete(d.list, oldest, oldest+1)
	} else if len(d.list) >= maxDumps {
		d.list = slices.Delete(d.list, 0, 1)
	}
	d.list = append(d.list, q)
}

// TraceDumps returns the dumps of queues that have failed, or had commands that took too long,
// oldest first. The caller does not change them.
func (t *Target) TraceDumps(of observed.TraceQuery) []observed.TraceQueue {
	t.dumps.mu.Lock()
	defer t.dumps.mu.Unlock()
	t.dumps.expire(time.Now())
	return slices.DeleteFunc(slices.Clone(t.dumps.list),
		func(q observed.TraceQueue) bool {
			return !selected(&of, q.Host, q.Subsystem, q.QID)
		})
}

// dumpFailed keeps the queue if its end is an error. Reactor only, from Handler.Close.
func (s *session) dumpFailed() {
	if s.trace == nil {
		return
	}
	failed, _ := errors.AsType[*failure](s.why)
	reporter, _ := s.q.(fabric.FailureReporter)
	reason := ""
	switch {
	case failed != nil:
		reason = failed.text
	case s.why != nil: // it is wanted
	case reporter != nil && reporter.Failure() != nil:
		reason = reporter.Failure().Error()
	case s.qid != 0 && (s.outstanding > 0 || s.abandoned):
		reason = "the host left while commands were outstanding"
	}
	if reason != "" && s.dump(reason) {
		s.ctrl.dumped.Store(true)
	}
}

// watchdog makes a dump of the queue: one of its commands takes, or has taken, took nanoseconds.
func (s *session) watchdog(took int64) {
	now := s.h.loop.Now()
	if s.trace == nil || s.watched != 0 && now-s.watched < watchdogEvery {
		return
	}
	s.watched = now
	duration := time.Duration(took).Round(time.Millisecond)
	if s.dump(fmt.Sprintf("a command takes %v", duration)) {
		s.ctrl.peerLog().Trouble("a command takes long", "duration", duration, "subsystem",
			s.ctrl.sub.nqn, "host", s.ctrl.hostNQN, "qid", s.qid, "hint", dumpHint)
	}
}

// dump keeps the recorded commands, if there is room, and reports whether it did. Reactor only.
func (s *session) dump(reason string) bool {
	keep := s.h.t.dumps.allows(s.info.Remote.Addr(), time.Now())
	if keep {
		s.h.t.dumps.add(s.snapshot(reason))
	}
	return keep
}

// snapshot describes everything that is recorded. Reactor only.
func (s *session) snapshot(reason string) observed.TraceQueue {
	from := new(traceCopy)
	s.copyTrace(from)
	q, _ := s.queue(from, 0, false)
	q.Reason = reason
	return q
}
