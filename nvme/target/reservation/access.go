package reservation

import (
	"maps"
	"unique"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Group is a command group, by which a reservation refuses commands (Base section 8.1.22.1).
type Group uint8

// The groups.
const (
	GroupNone Group = iota // not refused
	GroupRead
	GroupWrite
)

// Access says which hosts may use a reserved namespace. It is immutable; nil: all hosts. Any
// goroutine may use it.
type Access struct {
	typ    nvme.ReservationType
	holder HostHandle
	// registrants is empty if they have no more rights than others.
	registrants map[HostHandle]struct{}
}

// HostHandle stands for a Host where it is compared for each command.
type HostHandle = unique.Handle[Host]

// Access returns the access of hosts to the namespace.
func (r *State) Access() *Access {
	if r.Type == 0 {
		return nil
	}
	a := &Access{
		typ: r.Type, holder: unique.Make(r.Holder), registrants: map[HostHandle]struct{}{},
	}
	if !r.Type.SingleHolder() {
		for _, g := range r.Registrants {
			a.registrants[unique.Make(g.Host)] = struct{}{}
		}
	}
	return a
}

// Permits reports whether a host may send a command of a group (Base section 8.1.22.1).
func (a *Access) Permits(host HostHandle, g Group) bool {
	if g == GroupNone || g == GroupRead && !a.typ.ExcludesReads() || host == a.holder {
		return true
	}
	_, registered := a.registrants[host]
	return registered
}

func (a *Access) equal(o *Access) bool {
	if a == nil || o == nil {
		return a == o
	}
	return a.typ == o.typ && a.holder == o.holder && maps.Equal(a.registrants, o.registrants)
}
