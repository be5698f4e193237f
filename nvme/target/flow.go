package target

import (
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// shares are the resources that a reactor shares out, and the hosts that get them.
type shares struct {
	hosts  map[hostKey]*hostShare
	owners map[subnet.Owner]*owner
	// allOwners has the owners, to be walked.
	allOwners list.Set[owner]
	leaving   list.List[owner]
	flows     list.Set[flow] // of all hosts
	// strangers are the shares of queues without a host. The first is for addresses from which a
	// host has authenticated before, the second for all others, which cannot use up the first.
	strangers [2]mem.Share
}

// owner is an owner of shares on one reactor: a host that has proven its NQN, a claimed NQN, or the
// network of the hosts that claim it. Reactor only.
type owner struct {
	mem.Share // of the data memory
	key       subnet.Owner
	place     list.Place       // in Handler.allOwners
	hosts     int              // hostShares that count for it
	leaving   list.Node[owner] // in Handler.leaving: it has no hosts, but memory of some
	entries   int              // of latencies, of connected hosts
	compound.Owner
}

// hostShare is the state on one reactor of a host that is connected to a subsystem. All queues with
// the same proven host NQN are one host. Queues that only claim an NQN are one host for each
// network. Reactor only.
type hostShare struct {
	hostKey
	share *owner // of the NQN
	// payer is the owner of its turns: the network, unless the NQN is proven.
	payer    *owner
	admin    mem.Flow // commands that concern no namespace
	flows    []*flow  // by Namespace.Slot, with the channel's share
	sessions int
}

// hostKey names a host: its NQN, and subnet.Turns of its owners.
type hostKey struct {
	nqn   string
	payer subnet.Owner
}

// strangersPart is the divisor of the data memory for the share of all strangers together. Queues
// of strangers are queues without a successful Connect, queues of discovery controllers, and queues
// of hosts that have not authenticated. Addresses from which a host has authenticated before have
// another share of this size.
const strangersPart = 16

// owner returns the owner with a key, for one more host.
func (h *Handler) owner(key subnet.Owner) *owner {
	o := h.owners[key]
	if o == nil {
		o = &owner{key: key}
		h.owners[key] = o
		h.allOwners.Add(o, &o.place)
	}
	if o.leaving.Listed() {
		h.leaving.Remove(&o.leaving)
	}
	o.hosts++
	return o
}

// leave ends the use of an owner by a host. A transport may have memory of a queue that has ended
// for a while: a host that connects anew has it still.
func (h *Handler) leave(o *owner) {
	if o.hosts--; o.hosts > 0 {
		return
	}
	if o.Idle() {
		h.forget(o)
	} else {
		h.leaving.Push(o, &o.leaving)
	}
}

func (h *Handler) forget(o *owner) {
	delete(h.owners, o.key)
	h.allOwners.Remove(&o.place)
}

// forgetOwners forgets some owners that have nothing left: more than one host adds.
func (h *Handler) forgetOwners() {
	for range 4 {
		o := h.leaving.Pop()
		switch {
		case o == nil:
			return
		case o.Idle():
			h.forget(o)
		default:
			h.leaving.Push(o, &o.leaving)
		}
	}
}

// joinHost makes the session one of its host's. Its NQN is proven by TLS, or by authentication.
func (s *session) joinHost() {
	h := s.h
	h.forgetOwners()
	proven := s.info.TLS != nil || s.auth != nil && s.auth.Proven
	name, network := subnet.Owners(s.ctrl.HostNQN, proven, s.info.Remote.Addr())
	key := hostKey{name.NQN, subnet.Turns(name, network)}
	t := h.hosts[key]
	if t == nil {
		t = &hostShare{hostKey: key, share: h.owner(name)}
		t.admin.Host = &t.share.Share
		if t.payer = t.share; !proven {
			t.payer = h.owner(network)
			t.admin.Network = &t.payer.Share
		}
		h.hosts[key] = t
	}
	t.sessions++
	s.host, s.flow = t, &t.admin
}

// leaveHost undoes joinHost, if that was called.
func (s *session) leaveHost() {
	t, h := s.host, s.h
	if t == nil {
		return
	}
	if t.sessions--; t.sessions > 0 {
		return
	}
	flows := t.flows
	t.flows = nil
	h.inPieces(func() int {
		if len(flows) == 0 {
			return 0
		}
		f := flows[0]
		if flows = flows[1:]; f != nil {
			f.end()
		}
		return 1
	}, func() { // flows count for the owners until here, even if the host comes back meanwhile
		if h.leave(t.share); t.payer != t.share {
			h.leave(t.payer)
		}
	})
	delete(h.hosts, t.hostKey)
}

// flowTo returns the flow between the session's host and the namespace of a channel.
func (s *session) flowTo(ch *channel) *flow {
	t, slot := s.host, ch.ns.Slot
	if slot < len(t.flows) {
		if f := t.flows[slot]; f != nil && f.Namespace == &ch.share {
			return f
		}
	}
	if more := slot + 1 - len(t.flows); more > 0 {
		t.flows = append(t.flows, make([]*flow, more)...)
	}
	f := &flow{Flow: t.admin, host: t, ch: ch, turns: compound.NewFlow(&t.payer.Owner)}
	f.Namespace = &ch.share
	f.latency = s.h.latency.Join(t.nqn, &t.payer.entries, &ch.ns.ID)
	t.flows[slot] = f
	s.h.flows.Add(f, &f.place)
	ch.flows.Push(f, &f.ofChannel)
	f.link()
	return f
}

// end ends a flow, once, which the host no longer has.
func (f *flow) end() {
	if !f.ofChannel.Listed() {
		return
	}
	h := f.ch.h
	h.flows.Remove(&f.place)
	f.ch.flows.Remove(&f.ofChannel)
	f.limits.Unlink(h.loop.Now())
	h.latency.Leave(f.latency)
}

// flow is the traffic between a host and a namespace on one reactor, with its leases of the limits
// of the host, the subsystem and the namespace.
type flow struct {
	limits qos.Flow
	mem.Flow
	host      *hostShare
	ch        *channel
	place     list.Place      // in Handler.flows
	ofChannel list.Node[flow] // in channel.flows
	latency   *observe.Entry
	turns     compound.Flow
}
