package app

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// This file finds the hosts that a change of the configuration concerns.

// impact says what changes do to hosts that are connected. It looks at the target as it is before
// the changes.
type impact struct {
	s           *Server
	before      *config.Config
	next        *config.Config
	connections []target.ConnectionInfo
	// closing has the listener of each port that the changes close, by port ID.
	closing map[uint16]string
}

// connected returns the connections of hosts, none if a reactor does not answer.
func (s *Server) connected() []target.ConnectionInfo {
	ctx, cancel := context.WithTimeout(s.ending, s.usageTimeout)
	defer cancel()
	list, _ := s.target.Connections(ctx)
	return slices.DeleteFunc(list, func(c target.ConnectionInfo) bool {
		return c.HostNQN == "" || c.Discovery
	})
}

// affected returns the hosts that each of the changes concerns. The caller holds s.applying and has
// not made the changes; connections are those of connected.
func (s *Server) affected(next *config.Config, changes []config.Change,
	connections []target.ConnectionInfo,
) [][]control.Affected {
	im := &impact{
		s: s, before: s.config.Load(), next: next, connections: connections,
		closing: s.listeners.closing(next.Listeners),
	}
	list := make([][]control.Affected, len(changes))
	if im.before != nil {
		for i, c := range changes {
			list[i] = im.of(c)
		}
	}
	return list
}

// closing returns the open ports that none of the next listeners has, with their listeners.
func (ls *listeners) closing(next []config.Listener) map[uint16]string {
	list := make([]*listener, len(next))
	for i, c := range next {
		list[i] = &listener{name: c.Name, Listener: c}
	}
	slices.SortFunc(list, bySpecificity)
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	closing := map[uint16]string{}
	for _, p := range ls.ports {
		if p.open != nil {
			closing[p.id] = p.l.name
		}
	}
	for _, w := range ls.wanted(list) {
		if p := ls.ports[w.name]; p != nil {
			delete(closing, p.id)
		}
	}
	return closing
}

// of returns the hosts that a change concerns, in the order of their NQNs.
func (im *impact) of(c config.Change) []control.Affected {
	type controller struct {
		nqn string
		id  uint16
	}
	hosts, seen := map[string]*control.Affected{}, map[controller]bool{}
	for i := range im.connections {
		conn := &im.connections[i]
		effect := im.effect(c, conn)
		if effect == "" {
			continue
		}
		h := hosts[conn.HostNQN]
		if h == nil {
			h = &control.Affected{Host: conn.HostNQN, Effect: effect}
			hosts[conn.HostNQN] = h
		}
		h.InFlight += conn.InFlight
		if id := (controller{conn.SubNQN, conn.CNTLID}); !seen[id] {
			seen[id] = true
			h.Controllers++
		}
	}
	var list []control.Affected
	for _, nqn := range slices.Sorted(maps.Keys(hosts)) {
		list = append(list, *hosts[nqn])
	}
	return list
}

// effect is what a change does to a connection, "" for nothing.
func (im *impact) effect(c config.Change, conn *target.ConnectionInfo) string {
	switch {
	case c.Kind == config.KindListener:
		if c.Op != config.Add && im.closing[conn.PortID] == c.Listener {
			return control.Disconnects
		}
	case c.Kind == config.KindHost:
		if c.NQN == conn.HostNQN && !reaches(im.next, conn) && reaches(im.before, conn) {
			return control.Disconnects
		}
	case c.NQN != conn.SubNQN, c.Op == config.Add:
	case c.Kind == config.KindSubsystem:
		if c.Op == config.Remove || !admits(im.next, conn) && admits(im.before, conn) {
			return control.Disconnects
		}
	case c.Kind == config.KindNamespace:
		return im.onNamespace(c, conn)
	}
	return ""
}

func (im *impact) onNamespace(c config.Change, conn *target.ConnectionInfo) string {
	was, is := find(im.before, c.Object), find(im.next, c.Object)
	switch {
	case was == nil || !isShown(was, conn.HostNQN), !admits(im.next, conn): // it is disconnected
		return ""
	case is == nil || !isShown(is, conn.HostNQN):
		return control.Loses
	}
	if slices.ContainsFunc(c.Keys, func(k config.KeyChange) bool {
		return k.Storage && !k.Restart || k.Key == "read_only"
	}) {
		return control.Waits
	}
	return ""
}

// isShown reports whether a host of the subsystem may use a namespace.
func isShown(n *namespace, host string) bool {
	return len(n.Hosts) == 0 || slices.Contains(n.Hosts, host)
}

// reaches reports whether a host may connect from the address that it is connected from.
func reaches(c *config.Config, conn *target.ConnectionInfo) bool {
	i := slices.IndexFunc(c.Hosts, func(h config.Host) bool { return h.NQN == conn.HostNQN })
	if i < 0 || len(c.Hosts[i].Networks) == 0 {
		return true
	}
	from := conn.Remote.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(c.Hosts[i].Networks,
		func(n netip.Prefix) bool { return n.Contains(from) })
}

// admits reports whether the subsystem of a connection admits it.
func admits(c *config.Config, conn *target.ConnectionInfo) bool {
	i := slices.IndexFunc(c.Subsystems,
		func(s config.Subsystem) bool { return s.NQN == conn.SubNQN })
	if i < 0 {
		return false
	}
	s := &c.Subsystems[i]
	return (s.AllowAnyHost || slices.Contains(s.Hosts, conn.HostNQN)) &&
		s.Security&^conn.Security == 0
}
