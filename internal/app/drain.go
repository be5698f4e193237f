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
	ids, err := s.listeners.drain(which, drain)
	if len(ids) == 0 {
		p := control.NewProblem(http.StatusNotFound,
			fmt.Sprintf("there is no listener %q", which.Listener),
			"`nvmf-target listeners` lists them: give an address, a port ID or a name.")
		p.Place = "listener"
		return nil, p
	}
	return slices.DeleteFunc(s.listenerStates(), func(l control.Listener) bool {
		return !slices.Contains(ids, l.PortID)
	}), err
}

// is says whether a user means p: by its address, with or without the transport, its port ID, or
// the name of its listener.
func (p *port) is(name string) bool {
	if a, err := netip.ParseAddrPort(name); err == nil {
		return a == p.addr.AddrPort
	}
	return name == p.addr.String() || name == p.l.name || name == strconv.Itoa(int(p.id))
}

// drain takes ports out of service, or ends that, and returns their IDs.
func (ls *listeners) drain(which control.ListenerID, drain bool) (ids []uint16, err error) {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	if which.All && !drain {
		clear(ls.drained) // also those of ports that are gone
	}
	for _, p := range ls.byID() {
		switch {
		case !which.All && !p.is(which.Listener):
			continue
		case drain:
			ls.drained[p.name] = true
		default:
			delete(ls.drained, p.name)
		}
		ids = append(ids, p.id)
	}
	ls.mu.Unlock()
	up, drained, err := ls.update()
	ls.report("listener is drained", drained)
	ls.report("listener is up", up)
	return ids, err
}

// countDrained is how many ports are drained.
func (ls *listeners) countDrained() (n int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.ports {
		if ls.drained[p.name] {
			n++
		}
	}
	return n
}
