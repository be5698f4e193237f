package group

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"time"
)

// Balance moves groups, one after the other, from the gateway that serves the most to one that
// serves at least two fewer. Both decide the same from the records: the second one asks for the
// group, which shows that it is alive, and the holder drains the group. A group moves only to a
// gateway to which the same hosts are connected, so that no host loses its only path.
type Balance struct {
	gateway string
	after   time.Duration // for which a move must have been possible; 0: groups do not move

	holders string // at the last look
	since   map[move]time.Duration
	peers   map[string]*peer
	yields  map[uint32]string // gateways that may have groups of this one, at the last look
	gave    map[uint32]string // the same, of groups that are gone
	pair    [2]string         // the gateways of the next move
	pairAt  time.Duration     // since when they are
	known   map[uint64]Facts  // the ones that moves depend on, by a hash of all of an instance
}

// move is a move of a group to a gateway. All instances of the gateway describe it.
type move struct {
	group uint32
	to    string
}

// peer is a gateway that takes part in all groups.
type peer struct {
	instances string
	wait      time.Duration // for which a move to it must have been possible
	at        time.Duration // of its last fault
	faulty    bool          // it had a fault, so the next one makes the wait longer
	lost      bool          // the fault was a loss; the start that follows is a part of it
}

// calm is the time after which faults of a peer are forgotten. A peer waits for at most half of
// that.
const calm = time.Hour

// claimPatience is the time after which a gateway that gets no group may be dead.
const claimPatience = 30 * time.Second

// candidate is a move that has been possible for long enough.
type candidate struct {
	group    uint32
	from, to *Instance
	liking   int // of to for the group, above that of from
}

// NewBalance returns the balance of a gateway.
func NewBalance(gateway string, after time.Duration) *Balance {
	return &Balance{
		gateway: gateway, after: after, since: map[move]time.Duration{},
		peers: map[string]*peer{}, yields: map[uint32]string{}, gave: map[uint32]string{},
		known: map[uint64]Facts{},
	}
}

var seed = maphash.MakeSeed()

// facts returns the facts of an instance that moves depend on.
func (b *Balance) facts(i *Instance) Facts {
	sum := maphash.Bytes(seed, i.Facts)
	f, ok := b.known[sum]
	if !ok {
		if len(b.known) > 128*maxInstances { // more than all groups have
			clear(b.known)
		}
		all := i.facts() // which takes 70 µs for 16 namespaces
		f = Facts{Connected: all.Connected, Drained: all.Drained, Prefers: all.Prefers}
		b.known[sum] = f
	}
	return f
}

// Look moves groups when they are due. It is called about once a second with all groups and a hash
// of the hosts that use each. The hash is published later.
func (b *Balance) Look(groups map[uint32]*Group, hosts map[uint32]string) {
	now, all := boottime(), map[uint32]Status{}
	if b.after == 0 {
		return
	}
	for id, g := range groups {
		s := g.Status()
		s.connected = hosts[id]
		all[id] = s
	}
	wants, yields := b.look(now, all)
	for id, g := range groups {
		g.change(func(m *Machine, now time.Duration) { m.Balance(now, id == wants, yields[id]) })
	}
}

// look returns the group that this gateway asks for, 0 for none, and the instances that may have
// groups of this one.
func (b *Balance) look(now time.Duration, all map[uint32]Status) (wants uint32,
	yields map[uint32]string,
) {
	counts, instances, holders := map[string]int{}, map[string]string{}, ""
	groups := map[string]int{} // that a gateway takes part in
	for _, id := range slices.Sorted(maps.Keys(all)) {
		s := all[id]
		if s.Holder == b.gateway && s.Phase != phases[serving] {
			s.Holder = "" // it may be on its way
		}
		counts[s.Holder]++
		holders += fmt.Sprintf("%q ", s.Holder)
		for i := range s.Instances {
			instances[s.Instances[i].Gateway] += s.Instances[i].ID + " "
			groups[s.Instances[i].Gateway]++
		}
	}
	maps.DeleteFunc(instances, func(name, _ string) bool { return groups[name] < len(all) })
	b.watch(now, all, instances)
	if holders != b.holders || counts[""] > 0 {
		clear(b.since)
	}
	b.holders = holders
	list := b.candidates(now, all, counts, instances)
	if len(list) == 0 {
		b.pair = [2]string{}
		return 0, nil
	}
	slices.SortFunc(list, func(x, y candidate) int {
		return cmp.Or(
			counts[y.from.Gateway]-counts[x.from.Gateway],
			counts[x.to.Gateway]-counts[y.to.Gateway],
			cmp.Compare(x.from.Gateway, y.from.Gateway), cmp.Compare(x.to.Gateway, y.to.Gateway),
			y.liking-x.liking, cmp.Compare(x.group, y.group))
	})
	from, to := list[0].from.Gateway, list[0].to.Gateway
	if pair := [2]string{from, to}; pair != b.pair {
		b.pair, b.pairAt = pair, now
	} else if now-b.pairAt >= claimPatience {
		b.peers[to].faulty = true
		b.fault(now, b.peers[to]) // it is another one's turn
		b.pairAt = now
	}
	if to == b.gateway {
		return list[0].group, nil
	}
	yields = map[uint32]string{}
	for _, c := range list {
		if from == b.gateway && c.from.Gateway == from && c.to.Gateway == to {
			yields[c.group], b.yields[c.group] = c.to.ID, to
		}
	}
	return 0, yields
}

// watch notices that a gateway has started again, or has lost a group that this one gave to it.
func (b *Balance) watch(now time.Duration, all map[uint32]Status, instances map[string]string) {
	for _, p := range b.peers {
		if now-p.at >= calm {
			p.wait, p.faulty, p.lost = b.after, false, false
		}
	}
	for name, text := range instances {
		if b.peers[name] == nil {
			b.peers[name] = &peer{instances: text, wait: b.after, at: now}
		}
		if p := b.peers[name]; p.instances != text {
			p.instances = text
			if p.lost {
				p.lost, p.at = false, now
			}
			b.fault(now, p)
		}
	}
	for id, s := range all {
		to, here := b.gave[id], s.Phase == phases[serving]
		switch {
		case here && to != "":
			delete(b.gave, id)
			if p := b.peers[to]; p != nil {
				b.fault(now, p)
				p.lost = true
			}
		case !here && b.yields[id] != "":
			b.gave[id] = b.yields[id]
		}
	}
	clear(b.yields)
	maps.DeleteFunc(b.peers, func(name string, p *peer) bool {
		return instances[name] == "" && now-p.at >= calm
	})
}

// fault makes the wait of a gateway longer, unless the fault is its first one, or is the last one
// again, shown by another record.
func (b *Balance) fault(now time.Duration, p *peer) {
	if now-p.at < claimPatience {
		return
	}
	if p.faulty {
		p.wait = min(2*p.wait, max(b.after, calm/2))
	}
	p.faulty, p.at = true, now
}

// candidates returns the moves that have been possible for long enough.
func (b *Balance) candidates(now time.Duration, all map[uint32]Status, counts map[string]int,
	instances map[string]string,
) (list []candidate) {
	since := map[move]time.Duration{}
	for id, s := range all {
		from := s.holder()
		if from == nil || counts[""] > 0 || s.Problem != "" || len(s.Differences) > 0 {
			continue
		}
		for i := range s.Instances {
			to := &s.Instances[i]
			if instances[from.Gateway] == "" || instances[to.Gateway] == "" ||
				counts[from.Gateway] < counts[to.Gateway]+2 {
				continue
			}
			f, t := b.facts(from), b.facts(to)
			here := from.Gateway == b.gateway || to.Gateway == b.gateway
			if t.Drained || f.Connected == "" || f.Connected != t.Connected ||
				here && f.Connected != s.connected {
				continue
			}
			m := move{id, instances[to.Gateway]}
			since[m] = now
			if at, ok := b.since[m]; ok {
				since[m] = at
			}
			if now-since[m] >= b.peers[to.Gateway].wait {
				one := map[bool]int{true: 1}
				list = append(list, candidate{id, from, to, one[t.Prefers] - one[f.Prefers]})
			}
		}
	}
	b.since = since
	return list
}
