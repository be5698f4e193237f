package target

import (
	"maps"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// hostShare is what one reactor knows of a host that is connected to a subsystem: its share of the
// data memory. All controllers and queues of a host NQN are one host. Reactor only.
type hostShare struct {
	nqn      string
	share    mem.Share
	admin    mem.Flow // commands that concern no namespace
	flows    []*flow  // by namespace.slot, with the channel's share
	sessions int

	turns list.List[flow]      // that have work whose turn comes
	turn  list.Node[hostShare] // in Handler.turns while there are any
	left  int64                // of its turn, in bytes
}

// strangersPart is the part of the data memory that all queues have together whose host is not
// known to be allowed: those without a successful Connect, those of discovery controllers and those
// whose hosts have not authenticated. Addresses from which a host has authenticated before have
// another such part.
const strangersPart = 16

// joinHost makes the session one of its host's.
func (s *session) joinHost(nqn string) {
	h := s.h
	maps.DeleteFunc(h.hosts, func(_ string, t *hostShare) bool { return t.unused() })
	t := h.hosts[nqn]
	if t == nil {
		t = &hostShare{nqn: nqn}
		t.admin.Host = &t.share
		h.hosts[nqn] = t
	}
	t.sessions++
	s.host, s.flow = t, &t.admin
}

// leaveHost undoes joinHost, if that was called.
func (s *session) leaveHost() {
	t := s.host
	if t == nil {
		return
	}
	if t.sessions--; t.sessions > 0 {
		return
	}
	for _, f := range t.flows {
		if f != nil {
			f.unlink()
			s.h.latency.leave(f.latency)
		}
	}
	t.flows = nil
	if t.unused() {
		delete(s.h.hosts, t.nqn)
	}
}

// unused says that nothing is left of the host. A transport may have memory of a queue that has
// ended for a while: a host that connects anew has it still.
func (t *hostShare) unused() bool { return t.sessions == 0 && t.share.Idle() }

// flowTo returns the flow between the session's host and the namespace of a channel.
func (s *session) flowTo(ch *channel) *flow {
	t, slot := s.host, ch.ns.slot
	if slot < len(t.flows) {
		if f := t.flows[slot]; f != nil && f.Namespace == &ch.share {
			return f
		}
	}
	for len(t.flows) <= slot {
		t.flows = append(t.flows, nil)
	}
	f := &flow{Flow: mem.Flow{Host: &t.share, Namespace: &ch.share}, host: t, ch: ch}
	f.latency = s.h.latency.join(t.nqn, ch.ns)
	t.flows[slot] = f
	f.link()
	return f
}

// flow is the traffic between a host and a namespace on one reactor, with what it has of the limits
// of the host, the subsystem and the namespace.
type flow struct {
	leases []lease // of the limiters; none: nothing is limited
	mem.Flow
	host     *hostShare
	ch       *channel
	limiters [limiters]*limiter
	waiting  list.List[cmd]  // oldest first
	node     list.Node[flow] // in Handler.waiting while that is not empty
	due      int64           // when it is worth to look again
	at       *limiter        // that the first one waits for
	latency  *latencyEntry

	work        list.List[compound]   // that may begin something, in the order of their turns
	reads       list.List[compoundIO] // chunks that have been read, and wait for their other half
	turn        list.Node[flow]       // in hostShare.turns
	outstanding int64                 // work that was begun and has not ended, in bytes
}
