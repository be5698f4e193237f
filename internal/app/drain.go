package app

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

// This file takes ports out of service for maintenance. That is no configuration: a reload does not
// change it, and a restart ends it.

// drain closes ports and ends their connections, each when its commands are completed, or opens
// them again. It returns the ports that were meant.
func (s *Server) drain(which control.ListenerID, drain bool) ([]control.Listener, error) {
	s.applying.Lock()
	defer s.applying.Unlock()
	if s.stopping {
		return nil, errStopped
	}
	meant, err := s.listeners.drain(which, drain)
	if len(meant) == 0 {
		return nil, control.NewProblem(http.StatusNotFound,
			fmt.Sprintf("there is no listener %q", which.Listener),
			"`nvmf-target listeners` lists them: give an address, a port ID or a name.").
			At("listener")
	}
	return slices.DeleteFunc(s.listenerStates(), func(l control.Listener) bool {
		return !meant[listed{l.Name, l.PortID}]
	}), err
}

// listed is a row of listenerStates: a port, or with port ID 0 what a listener lacks.
type listed struct {
	listener string
	portID   uint16
}

// is reports whether a user means p: by its address, with or without the transport, its port ID, or
// its listener.
func (p *port) is(name string) bool {
	if a, err := netip.ParseAddrPort(name); err == nil {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) == p.addr.AddrPort
	}
	return name == p.addr.String() || p.l.Is(name) || name == strconv.Itoa(int(p.id))
}

// drain takes ports out of service, or ends that, and returns what was meant. With a listener that
// is the ports that it will have, too.
func (ls *listeners) drain(which control.ListenerID, drain bool) (meant map[listed]bool,
	err error,
) {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	if which.All && !drain {
		clear(ls.drained) // also those of ports that are gone
	}
	meant = map[listed]bool{}
	mark := func(name string) {
		if delete(ls.drained, name); drain {
			ls.drained[name] = true
		}
	}
	for _, l := range ls.list {
		if which.All || l.Is(which.Listener) {
			mark(l.name)
			meant[listed{l.name, 0}] = true
		}
	}
	for _, p := range ls.byID() {
		if which.All || p.is(which.Listener) {
			if !drain {
				ls.drainEach(p.l)
			}
			mark(p.name)
			meant[listed{p.l.name, p.id}] = true
		}
	}
	ls.mu.Unlock()
	up, drained, err := ls.update()
	ls.report("listener is drained", drained)
	ls.report("listener is up", up)
	ls.try() // what could not be opened is tried again soon
	return meant, err
}

// drainEach makes a drained listener one whose ports are drained, each on its own. ls.mu is held.
func (ls *listeners) drainEach(l *listener) {
	if !ls.drained[l.name] {
		return
	}
	delete(ls.drained, l.name)
	for _, p := range ls.ports {
		if p.l == l {
			ls.drained[p.name] = true
		}
	}
}

// isDrained reports whether a port is to stay closed. ls.mu is held.
func (ls *listeners) isDrained(p *port) bool { return ls.drained[p.name] || ls.drained[p.l.name] }

// countDrained is how many ports are drained, and listeners that have none.
func (ls *listeners) countDrained() (n int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.ports {
		if ls.isDrained(p) {
			n++
		}
	}
	for _, l := range ls.list {
		if l.err != nil && ls.drained[l.name] {
			n++
		}
	}
	return n
}
