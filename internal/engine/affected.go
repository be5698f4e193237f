package engine

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// This file finds the hosts that a change of the configuration concerns.

// impact finds the effects of changes on hosts from a look at the target before them.
type impact struct {
	before      *config.Config
	next        *config.Config
	connections []observed.Connection
	ports       map[uint16]listeners.Owners // the open ones, by port ID
}

// connectedTimeout bounds the wait for the connections of a reactor.
const connectedTimeout = time.Second

// connected returns the connections of hosts, none if a reactor does not answer.
func (e *Engine) connected() []observed.Connection {
	ctx, cancel := context.WithTimeout(e.Ending, connectedTimeout)
	defer cancel()
	list, _ := e.Target.Connections(ctx)
	return slices.DeleteFunc(list, func(c observed.Connection) bool {
		return c.Host == "" || c.Discovery
	})
}

// affected returns the hosts affected by each of the changes. The caller holds e.applying and has
// not made the changes; connections is the result of connected.
func (e *Engine) affected(next *config.Config, changes []config.Change,
	connections []observed.Connection,
) [][]control.Affected {
	im := &impact{
		before: e.config.Load(), next: next, connections: connections,
		ports: e.Listeners.Owners(next.Listeners),
	}
	list := make([][]control.Affected, len(changes))
	if im.before != nil {
		for i, c := range changes {
			list[i] = im.of(c)
		}
	}
	return list
}

// of returns the hosts affected by a change, in the order of their NQNs.
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
		h := hosts[conn.Host]
		if h == nil {
			h = &control.Affected{Host: conn.Host, Effect: effect}
			hosts[conn.Host] = h
		}
		h.InFlight += conn.InFlight
		if id := (controller{conn.Subsystem, conn.CNTLID}); !seen[id] {
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

// effect returns the effect of a change on a connection, "" for none.
func (im *impact) effect(c config.Change, conn *observed.Connection) string {
	switch {
	case c.Kind == config.KindListener:
		if im.takesPort(c, conn) {
			return control.Disconnects
		}
	case c.Kind == config.KindHost:
		lost := !reaches(im.next, conn) && reaches(im.before, conn) ||
			!hasKey(im.next, conn.Host) && hasKey(im.before, conn.Host) &&
				!admits(im.next, conn) && admits(im.before, conn)
		if c.NQN == conn.Host && lost {
			return control.Disconnects
		}
	case c.NQN != conn.Subsystem, c.Op == config.Add:
	case c.Kind == config.KindSubsystem:
		port := im.ports[conn.PortID].Now
		if im.movesFirst(conn) {
			port = im.ports[conn.PortID].Then
		}
		if c.Op == config.Remove || !admits(im.next, conn) && admits(im.before, conn) ||
			!servedAt(im.next, conn, port) && servedAt(im.before, conn, port) {
			return control.Disconnects
		}
	case c.Kind == config.KindNamespace:
		return im.onNamespace(c, conn)
	}
	return ""
}

func (im *impact) onNamespace(c config.Change, conn *observed.Connection) string {
	was, is := volumes.Find(im.before, c.Object), volumes.Find(im.next, c.Object)
	switch {
	case was == nil || !isShown(was, conn.Host), !admits(im.next, conn): // it is disconnected
		return ""
	case is == nil || !isShown(is, conn.Host):
		return control.Loses
	}
	if slices.ContainsFunc(c.Keys, func(k lang.KeyChange) bool {
		return k.Storage && !k.Restart || k.Key == "read_only"
	}) {
		return control.Waits
	}
	return ""
}

// takesPort reports whether a change takes the port of a connection from its subsystem.
func (im *impact) takesPort(c config.Change, conn *observed.Connection) bool {
	port := im.ports[conn.PortID]
	switch {
	case port.Then == "":
		return c.Op != config.Add && c.Listener == port.Now
	case port.Now == port.Then:
		return false
	case im.movesFirst(conn):
		return c.Listener == port.Now && !servedAt(im.before, conn, port.Then)
	}
	return c.Listener == port.Then && !servedAt(im.next, conn, port.Then)
}

// movesFirst reports whether a listener that there is already gets the port of a connection, since
// another one is removed: that comes before changes of subsystems, and new listeners come after.
func (im *impact) movesFirst(conn *observed.Connection) bool {
	return slices.ContainsFunc(im.before.Listeners,
		func(l config.Listener) bool { return l.Name == im.ports[conn.PortID].Then })
}

// isShown reports whether a host of the subsystem may use a namespace.
func isShown(n *volumes.Namespace, host string) bool {
	return len(n.Hosts) == 0 || slices.Contains(n.Hosts, host)
}

// reaches reports whether a host may connect from its current address.
func reaches(c *config.Config, conn *observed.Connection) bool {
	i := slices.IndexFunc(c.Hosts, func(h config.Host) bool { return h.NQN == conn.Host })
	if i < 0 || len(c.Hosts[i].Networks) == 0 {
		return true
	}
	from := conn.Remote.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(c.Hosts[i].Networks,
		func(n netip.Prefix) bool { return n.Contains(from) })
}

// hasKey reports whether a host has a key for authentication.
func hasKey(c *config.Config, nqn string) bool {
	return slices.ContainsFunc(c.Hosts,
		func(h config.Host) bool { return h.NQN == nqn && h.Key != nil })
}

// admits reports whether the subsystem of a connection admits its host.
func admits(c *config.Config, conn *observed.Connection) bool {
	s := subsystemOf(c, conn)
	if s == nil {
		return false
	}
	has := subsystems.SecurityOf(conn)
	if !hasKey(c, conn.Host) {
		has &^= subsystems.SecurityAuth
	}
	return (s.AllowAnyHost || slices.Contains(s.Hosts, conn.Host)) && s.Security&^has == 0
}

// servedAt reports whether a listener serves the subsystem of a connection.
func servedAt(c *config.Config, conn *observed.Connection, listener string) bool {
	s := subsystemOf(c, conn)
	return s != nil && (len(s.Listeners) == 0 || slices.Contains(s.Listeners, listener))
}

// subsystemOf returns the subsystem of a connection in a configuration, nil if it has none.
func subsystemOf(c *config.Config, conn *observed.Connection) *config.Subsystem {
	i := slices.IndexFunc(c.Subsystems,
		func(s config.Subsystem) bool { return s.NQN == conn.Subsystem })
	if i < 0 {
		return nil
	}
	return &c.Subsystems[i]
}
