package controllers

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// Port is the state of a port, also after its removal. It changes while controllers use it.
type Port struct {
	ANA      atomic.Pointer[ana.States]
	Listener atomic.Pointer[string] // "" before it is added
	Removed  atomic.Bool
	Sessions atomic.Int64 // queues that came through it and have not ended
}

// Ports are the ports of a target. State may be called by any goroutine; the caller of the other
// methods has a lock.
type Ports struct {
	List   []discovery.Port // in the order of ID; a change makes another list
	states sync.Map         // *Port by ID, one for each ID ever used
}

// State returns the state of a port.
func (p *Ports) State(id uint16) *Port {
	s, known := p.states.Load(id)
	if !known {
		state := new(Port)
		state.Listener.Store(new(string))
		s, _ = p.states.LoadOrStore(id, state)
	}
	return s.(*Port)
}

// Add adds a port.
func (p *Ports) Add(port discovery.Port) error {
	if slices.ContainsFunc(p.List, func(o discovery.Port) bool { return o.ID == port.ID }) {
		return fmt.Errorf("port %d exists already", port.ID)
	}
	state := p.State(port.ID)
	state.Listener.Store(&port.Listener)
	state.Removed.Store(false)
	p.List = append(slices.Clone(p.List), port)
	slices.SortFunc(p.List, func(a, b discovery.Port) int { return int(a.ID) - int(b.ID) })
	return nil
}

// Remove removes a port, and marks its state.
func (p *Ports) Remove(id uint16) error {
	n := len(p.List)
	p.List = slices.DeleteFunc(slices.Clone(p.List),
		func(o discovery.Port) bool { return o.ID == id })
	if len(p.List) == n {
		return fmt.Errorf("port %d does not exist", id)
	}
	p.State(id).Removed.Store(true)
	return nil
}

// SetListener sets the listener of a port and its TLS policy.
func (p *Ports) SetListener(id uint16, listener string, tls fabric.TLSPolicy) {
	p.List = slices.Clone(p.List)
	for i := range p.List {
		if p.List[i].ID == id {
			p.List[i].Listener, p.List[i].TLS = listener, tls
		}
	}
	p.State(id).Listener.Store(&listener)
}
