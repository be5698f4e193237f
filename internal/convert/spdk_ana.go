package convert

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// This file reads the ANA states of SPDK: by listener and subsystem there, by listener here.

// anaStates has the states of ANA groups; group 0 stands for all others, and "" means optimized.
type anaStates map[uint64]string

// anaState returns the state that an RPC names, "" for optimized.
func (s *spdk) anaState(p *value, path string) string {
	state := strings.ReplaceAll(s.str(p, "ana_state", path), "_", "-")
	if state == "optimized" {
		return ""
	}
	return state
}

func (s *spdk) setState(n *subsystem, l *listener, group uint64, state string) {
	if s.states[n] == nil {
		s.states[n] = map[*listener]anaStates{}
	}
	if group == 0 || s.states[n][l] == nil {
		s.states[n][l] = anaStates{}
	}
	s.states[n][l][group] = state
}

func (s *spdk) setListenerState(p *value, path string) {
	n := s.of(p, path)
	if n == nil {
		return
	}
	l := s.endpoint(s.object(p, "listen_address", path), path+"listen_address.", "listener")
	group, state := s.number(p, "anagrpid", path, 0), s.anaState(p, path)
	if l == nil {
		return
	}
	i := slices.IndexFunc(n.listeners, func(o *listener) bool { return o.name() == l.name() })
	if i >= 0 {
		s.setState(n, n.listeners[i], group, state)
	}
}

// setGroup moves a namespace into another ANA group.
func (s *spdk) setGroup(p *value, path string) {
	n := s.of(p, path)
	nsid, group := s.number(p, "nsid", path, 0), s.number(p, "anagrpid", path, 0)
	p.member("transit_anagrpid") // an intermediate step
	if n == nil {
		return
	}
	for _, ns := range n.namespaces {
		if ns.nsid == nsid {
			ns.anaGroup = group
		}
	}
}

// group returns the ANA group of a namespace in SPDK, by default its NSID.
func (n *namespace) group() uint64 {
	return cmp.Or(n.anaGroup, n.nsid)
}

// applyStates gives listeners the states of their subsystems. If two subsystems of a listener have
// different states for a group, the later one loses the listener.
func (s *spdk) applyStates() {
	for _, n := range s.out.subsystems {
		for _, ns := range n.namespaces {
			if len(s.states[n]) > 0 && slices.ContainsFunc(n.listeners, func(l *listener) bool {
				return slices.ContainsFunc(slices.Collect(maps.Values(s.states[n][l])),
					func(state string) bool { return state != "" })
			}) {
				ns.anaGroup = ns.group()
			}
		}
	}
	has := map[*listener]anaStates{} // including optimized ones, which are ""
	for _, n := range s.out.subsystems {
		for _, l := range slices.Clone(n.listeners) {
			if has[l] == nil {
				has[l] = anaStates{}
			}
			conflict := uint64(0)
			for _, ns := range n.namespaces {
				group := max(ns.anaGroup, 1)
				if state, known := has[l][group]; known && state != s.states[n][l].of(ns) {
					conflict = group
				}
			}
			if conflict != 0 {
				s.note(n.at, "left out: the listener %s of %s, where ANA group %d has another "+
					"state than in another subsystem; here a listener has one for all",
					short(l.name()), short(n.nqn), conflict)
				n.listeners = remove(n.listeners, l)
				continue
			}
			for _, ns := range n.namespaces {
				group, state := max(ns.anaGroup, 1), s.states[n][l].of(ns)
				has[l][group] = state
				if state == "" {
					continue
				}
				if l.ana == nil {
					l.ana = map[uint64]string{}
				}
				l.ana[group] = state
			}
		}
	}
}

func (a anaStates) of(n *namespace) string {
	if state, ok := a[n.group()]; ok {
		return state
	}
	return a[0]
}
