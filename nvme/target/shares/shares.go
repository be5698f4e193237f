// Package shares has the hosts that use a reactor, and their shares of its data memory, its turns,
// the limits and the latencies. A Flow is the traffic between a host and a namespace.
//
// It imports compound, namespaces, observe and qos for the parts of a flow. The reactor calls it.
package shares

import (
	"net/netip"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Table has the hosts of a reactor. Its maker sets the functions and Latency.
type Table struct {
	Now func() int64
	// Pieces does many things, see list.Pieces.
	Pieces func(next func() int, done func())
	// Limiters returns the current limits of the traffic of a host to a namespace.
	Limiters func(hostNQN string, ns *namespaces.Namespace) qos.Limiters
	Latency  *observe.Latencies

	Hosts  map[Key]*Host
	Owners map[subnet.Owner]*Owner
	// All has the owners, to be walked.
	All     list.Set[Owner]
	leaving list.List[Owner]
	Flows   list.Set[Flow] // of all hosts
}

// Owner is an owner of shares on one reactor: a host that has proven its NQN, a claimed NQN, or the
// network of the hosts that claim it.
type Owner struct {
	mem.Share // of the data memory
	Key       subnet.Owner
	place     list.Place       // in Table.All
	hosts     int              // that count for it
	leaving   list.Node[Owner] // in Table.leaving: it has no hosts, but memory of some
	Entries   int              // of latencies, of connected hosts
	compound.Owner
}

// Host is a host that is connected to a subsystem. All queues with the same proven host NQN are one
// host. Queues that only claim an NQN are one host for each network.
type Host struct {
	Key
	Share *Owner // of the NQN
	// Payer is the owner of its turns: the network, unless the NQN is proven.
	Payer    *Owner
	Admin    mem.Flow // commands that concern no namespace
	Flows    []*Flow  // by Namespace.Slot
	Sessions int
}

// Key names a host: its NQN, and subnet.Turns of its owners.
type Key struct {
	NQN   string
	Payer subnet.Owner
}

// Channel has the shares of a namespace.
type Channel struct {
	Namespace *namespaces.Namespace
	// Share is the data memory of the commands of all hosts for the namespace, including memory
	// that devices keep after the command was given up.
	Share mem.Share
	flows list.List[Flow] // of all hosts
}

// Flow is the traffic between a host and a namespace, with its leases of the limits of the host,
// the subsystem and the namespace.
type Flow struct {
	Limits qos.Flow
	mem.Flow
	Host      *Host
	Channel   *Channel
	place     list.Place      // in Table.Flows
	ofChannel list.Node[Flow] // in Channel.flows
	Latency   *observe.Entry
	Turns     compound.Flow
}

// Data is how much data memory an owner has and may have, in bytes.
type Data struct{ Used, Most int }

// Data calls done with the data memory of the owners, in a later turn.
func (t *Table) Data(memory *mem.Pool, done func(map[subnet.Owner]Data)) {
	list := map[subnet.Owner]Data{}
	t.Pieces(t.All.Walk(func(o *Owner) int {
		if memory != nil {
			list[o.Key] = Data{Used: o.Used(), Most: memory.Most(&o.Share)}
		}
		return 1
	}), func() { done(list) })
}

// owner returns the owner with a key, for one more host.
func (t *Table) owner(key subnet.Owner) *Owner {
	o := t.Owners[key]
	if o == nil {
		o = &Owner{Key: key}
		t.Owners[key] = o
		t.All.Add(o, &o.place)
	}
	if o.leaving.Listed() {
		t.leaving.Remove(&o.leaving)
	}
	o.hosts++
	return o
}

// leave ends the use of an owner by a host. A transport may have memory of a queue that has ended
// for a while: a host that connects again still has it.
func (t *Table) leave(o *Owner) {
	if o.hosts--; o.hosts > 0 {
		return
	}
	if o.Idle() {
		t.forget(o)
	} else {
		t.leaving.Push(o, &o.leaving)
	}
}

func (t *Table) forget(o *Owner) {
	delete(t.Owners, o.Key)
	t.All.Remove(&o.place)
}

// forgetOwners forgets some owners that have nothing left: more than one host adds.
func (t *Table) forgetOwners() {
	for range 4 {
		o := t.leaving.Pop()
		switch {
		case o == nil:
			return
		case o.Idle():
			t.forget(o)
		default:
			t.leaving.Push(o, &o.leaving)
		}
	}
}

// Join adds a queue to its host. Its NQN is proven by TLS, or by authentication.
func (t *Table) Join(hostNQN string, proven bool, from netip.Addr) *Host {
	t.forgetOwners()
	name, network := subnet.Owners(hostNQN, proven, from)
	key := Key{name.NQN, subnet.Turns(name, network)}
	h := t.Hosts[key]
	if h == nil {
		h = &Host{Key: key, Share: t.owner(name)}
		h.Admin.Host = &h.Share.Share
		if h.Payer = h.Share; !proven {
			h.Payer = t.owner(network)
			h.Admin.Network = &h.Payer.Share
		}
		t.Hosts[key] = h
	}
	h.Sessions++
	return h
}

// Leave undoes Join.
func (t *Table) Leave(h *Host) {
	if h.Sessions--; h.Sessions > 0 {
		return
	}
	flows := h.Flows
	h.Flows = nil
	t.Pieces(func() int {
		if len(flows) == 0 {
			return 0
		}
		f := flows[0]
		if flows = flows[1:]; f != nil {
			t.end(f)
		}
		return 1
	}, func() { // flows count for the owners until here, even if the host comes back meanwhile
		if t.leave(h.Share); h.Payer != h.Share {
			t.leave(h.Payer)
		}
	})
	delete(t.Hosts, h.Key)
}

// FlowTo returns the flow between a host and the namespace of a channel.
func (t *Table) FlowTo(h *Host, ch *Channel) *Flow {
	slot := ch.Namespace.Slot
	if slot < len(h.Flows) {
		if f := h.Flows[slot]; f != nil && f.Namespace == &ch.Share {
			return f
		}
	}
	if more := slot + 1 - len(h.Flows); more > 0 {
		h.Flows = append(h.Flows, make([]*Flow, more)...)
	}
	f := &Flow{Flow: h.Admin, Host: h, Channel: ch, Turns: compound.NewFlow(&h.Payer.Owner)}
	f.Namespace = &ch.Share
	f.Latency = t.Latency.Join(h.NQN, &h.Payer.Entries, &ch.Namespace.ID)
	h.Flows[slot] = f
	t.Flows.Add(f, &f.place)
	ch.flows.Push(f, &f.ofChannel)
	t.link(f)
	return f
}

// end ends a flow, once, which the host no longer has.
func (t *Table) end(f *Flow) {
	if !f.ofChannel.Listed() {
		return
	}
	t.Flows.Remove(&f.place)
	f.Channel.flows.Remove(&f.ofChannel)
	f.Limits.Unlink(t.Now())
	t.Latency.Leave(f.Latency)
}

// link makes a flow use the current limits.
func (t *Table) link(f *Flow) {
	f.Limits.Link(t.Limiters(f.Host.NQN, f.Channel.Namespace), f.Host.Payer.Key, t.Now())
}

// linkSteps is the number of steps in which a flow changes its limits, or a command goes on.
const linkSteps = 8

// Drop ends the flows to the namespace of a channel that is removed, and then calls done. It calls
// goOn with each command that waits at a limit, which no longer does.
func (t *Table) Drop(ch *Channel, g *qos.Gate, goOn func(*qos.Waiter), done func()) {
	t.Latency.Drop(&ch.Namespace.ID)
	t.Pieces(func() int {
		f := ch.flows.First()
		if f == nil {
			return 0
		}
		t.Flows.Remove(&f.place)
		f.Limits.Unlink(t.Now()) // nothing waits again
		if w := f.Limits.First(); w != nil {
			g.Leave(&f.Limits, w)
			goOn(w)
			return linkSteps
		}
		if slot := ch.Namespace.Slot; slot < len(f.Host.Flows) && f.Host.Flows[slot] == f {
			f.Host.Flows[slot] = nil
		}
		t.end(f)
		return linkSteps
	}, done)
}

// Relink makes all flows use the current limits. Waiting flows are due at once.
func (t *Table) Relink(g *qos.Gate) {
	t.Pieces(t.Flows.Walk(func(f *Flow) int {
		t.link(f)
		g.Hurry(&f.Limits)
		return linkSteps
	}), func() { g.Poll() })
}
