// Package discovery makes the log of the discovery service (log 70h, Base section 5.1.12.3.1): a
// Table of all subsystems, ports and referrals for each generation and, from this table, the Log of
// one host.
//
// It imports the wire formats and the addresses of package fabric. A Table is immutable. Logs
// belong to the reactor of their controller.
package discovery

import (
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/fabric"
)

// Port is a listener as the log shows it.
type Port struct {
	// ID is the port identifier, as in fabric.QueueInfo.PortID.
	ID uint16
	// Addr is where the listener listens. For a wildcard, each host is shown the address that it
	// connected to.
	Addr fabric.Addr
	// Listener is the name of the listener that has the port.
	Listener string
	// TLS is the policy that hosts are told of. The transport enforces it.
	TLS fabric.TLSPolicy
}

// Referral is an entry for another discovery service.
type Referral struct {
	Addr fabric.Addr
	NQN  string
	// Hosts are the NQNs of the hosts that are told of it; empty: all.
	Hosts []string
}

// Remote is a port of another gateway.
type Remote struct {
	Port
	// Subsystems has the NQNs of the ones that hosts reach there, if they may use them here.
	Subsystems map[string]bool
}

// serves reports whether hosts reach a subsystem there.
func (r *Remote) serves(s Subsystem) bool {
	return r.Subsystems[s.Name()] && (s.ServedBy() == nil || s.ServedBy()[r.Listener])
}

// Subsystem is a subsystem in a table, immutable and comparable: a change makes another.
type Subsystem interface {
	// Name is the NQN.
	Name() string
	// ServedBy has the names of the listeners that the subsystem is reached through; nil: all.
	ServedBy() map[string]bool
}

// Table is the source of the logs of all hosts in one generation. It is immutable.
type Table struct {
	// Generation starts at 1.
	Generation uint64
	// NQN is the name that the service is shown under.
	NQN       string
	Ports     []Port
	Referrals []Referral
	// Remotes are left out for hosts that ask only for the port that they came through.
	Remotes []Remote
	// Shared: other gateways show the same generations. So GENCTR is always that of the table.
	Shared bool

	subs []entry // the service itself, and the others by NQN
}

// entry is a subsystem and the indices of the ports that serve it, ascending.
type entry struct {
	Subsystem
	ports []int
}

// Fill adds the discovery service and the other subsystems to a table that has nothing else left to
// set. last is the table before this one, or nil. Its port lists are used again if it has the same
// ports.
func (t *Table) Fill(service Subsystem, others []Subsystem, last *Table) {
	every, byListener := make([]int, len(t.Ports)), map[string][]int{}
	for i, p := range t.Ports {
		every[i] = i
		byListener[p.Listener] = append(byListener[p.Listener], i)
	}
	known := map[Subsystem][]int{} // of last, if its ports are the same
	if last != nil && len(t.Ports) > 0 && len(last.Ports) == len(t.Ports) &&
		&last.Ports[0] == &t.Ports[0] {
		for _, s := range last.subs {
			known[s.Subsystem] = s.ports
		}
	}
	for _, s := range others {
		e := entry{s, every}
		if ports, ok := known[s]; ok {
			e.ports = ports
		} else if s.ServedBy() != nil {
			e.ports = nil
			for name := range s.ServedBy() {
				e.ports = append(e.ports, byListener[name]...)
			}
			slices.Sort(e.ports)
		}
		t.subs = append(t.subs, e)
	}
	slices.SortFunc(t.subs, func(a, b entry) int { return strings.Compare(a.Name(), b.Name()) })
	t.subs = slices.Insert(t.subs, 0, entry{service, every})
}
