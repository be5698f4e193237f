package app

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// This file takes listeners out of service for maintenance. That is no configuration: a reload does
// not change it, and a restart ends it.

// drain closes listeners and ends their connections, each when its commands are completed, or opens
// them again. It returns the listeners that were meant.
func (s *Server) drain(which control.ListenerID, drain bool) ([]control.Listener, error) {
	s.applying.Lock()
	defer s.applying.Unlock()
	if s.stopping {
		return nil, errStopped
	}
	var errs []error
	var ids []uint16
	for _, seen := range s.listeners.snapshot() {
		if !which.All && !seen.is(which.Listener) {
			continue
		}
		ids = append(ids, seen.portID)
		if l := s.listeners.get(seen.name); drain {
			errs = append(errs, s.listeners.drain(l))
		} else {
			s.listeners.undrain(l)
		}
	}
	if len(ids) == 0 {
		p := control.NewProblem(http.StatusNotFound,
			fmt.Sprintf("there is no listener %q", which.Listener),
			"`nvmf-target listeners` lists them: give an address, or a port ID.")
		p.Place = "listener"
		return nil, p
	}
	return slices.DeleteFunc(s.listenerStates(), func(l control.Listener) bool {
		return !slices.Contains(ids, l.PortID)
	}), errors.Join(errs...)
}

// is says whether a user means l: by its address, with or without the transport, or its port ID.
func (l *listener) is(name string) bool {
	at := l.addr()
	if l.open != nil {
		at = l.open.Addr()
	}
	if a, err := netip.ParseAddrPort(name); err == nil {
		return a == at.AddrPort
	}
	return name == at.String() || name == strconv.Itoa(int(l.portID))
}

// drain takes a listener out of service.
func (ls *listeners) drain(l *listener) error {
	if l.isDrained() {
		return nil
	}
	ls.endAttempts(l)
	ls.mu.Lock()
	open, at := l.open, l.addr()
	if open != nil {
		at = open.Addr()
	}
	l.open, l.err, l.ended, l.drained = nil, nil, nil, at
	ls.mu.Unlock()
	ls.s.log.Info("listener is drained", "listener", at)
	if open == nil {
		return nil
	}
	return errors.Join(open.Close(), ls.s.target.RemovePort(l.portID))
}

// undrain opens a listener again, or waits for its address or its device.
func (ls *listeners) undrain(l *listener) {
	if !l.isDrained() {
		return
	}
	err := ls.tryOnce(l) // at the address that it had
	ls.mu.Lock()
	at := l.drained
	l.drained = fabric.Addr{}
	ls.mu.Unlock()
	if err != nil {
		ls.await(l, err)
		return
	}
	ls.s.log.Info("listener is up", "listener", at)
}

// isDrained says whether it is a drained listener.
func (l *listener) isDrained() bool { return l.drained.IsValid() }

// drainState says how far the end of the connections has come.
func (s *Server) drainState(l *listener) string {
	if s.target.PortSessions(l.portID) > 0 {
		return "draining"
	}
	return "drained"
}

// countDrained is how many listeners are drained.
func (ls *listeners) countDrained() (n int) {
	for _, l := range ls.snapshot() {
		if l.isDrained() {
			n++
		}
	}
	return n
}
