package listeners

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// This file takes ports out of service for maintenance. This is not configuration: a reload does
// not change it, and a restart ends it.

// Drain takes ports out of service, each connection when its commands are completed, or ends that.
// It returns the ports that were meant.
func (ls *Listeners) Drain(which control.ListenerID, drain bool) ([]observed.Listener, error) {
	meant, err := ls.drain(which, drain)
	if len(meant) == 0 {
		return nil, control.NewProblem(http.StatusNotFound,
			fmt.Sprintf("there is no listener %q", which.Listener),
			"`nvmf-target listeners` lists them: give an address, a port ID or a name.").
			At("listener")
	}
	return slices.DeleteFunc(ls.States(), func(l observed.Listener) bool {
		return !meant[listed{l.Name, l.PortID}]
	}), err
}

// listed is a row of States: a port, or with port ID 0 a listener without ports.
type listed struct {
	listener string
	portID   uint16
}

// is reports whether a user's name means p: its address, transport and address, ID, or listener.
func (p *port) is(name string) bool {
	if a, err := netip.ParseAddrPort(name); err == nil {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) == p.addr.AddrPort
	}
	return name == p.addr.String() || p.l.Is(name) || name == strconv.Itoa(int(p.id))
}

// drain takes ports out of service, or ends that, and returns the rows that were meant. A listener
// stands for the ports that it will have, too.
func (ls *Listeners) drain(which control.ListenerID, drain bool) (meant map[listed]bool,
	err error,
) {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	if which.All && !drain {
		clear(ls.drained) // including ports that are gone
	}
	meant = map[listed]bool{}
	mark := func(name string) {
		if delete(ls.drained, name); drain {
			ls.drained[name] = true
		}
	}
	for _, l := range ls.list {
		if which.All || l.Is(which.Listener) {
			mark(l.Name)
			meant[listed{l.Name, 0}] = true
		}
	}
	for _, p := range ls.byID() {
		if which.All || p.is(which.Listener) {
			if !drain {
				ls.drainEach(p.l)
			}
			mark(p.name)
			meant[listed{p.l.Name, p.id}] = true
		}
	}
	ls.mu.Unlock()
	up, drained, err := ls.update()
	ls.report("listener is drained", drained)
	ls.report("listener is up", up)
	ls.try() // opens soon the ports that failed
	return meant, err
}

// drainEach drains each port of a drained listener instead of the listener. ls.mu is held.
func (ls *Listeners) drainEach(l *listener) {
	if !ls.drained[l.Name] {
		return
	}
	delete(ls.drained, l.Name)
	for _, p := range ls.ports {
		if p.l == l {
			ls.drained[p.name] = true
		}
	}
}

// isDrained reports whether a port must stay closed. ls.mu is held.
func (ls *Listeners) isDrained(p *port) bool { return ls.drained[p.name] || ls.drained[p.l.Name] }

// States lists the ports by port ID, and then the listeners that lack ports.
func (ls *Listeners) States() (list []observed.Listener) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.byID() {
		out := observed.Listener{
			Name: p.l.Name, Transport: p.addr.Transport.String(),
			Address: p.addr.AddrPort.String(), PortID: p.id, State: "up",
			Connections: ls.Target.PortSessions(p.id),
		}
		if s := stackOf(p.open); s != fabric.AnyStack {
			out.Stack = s.String()
		}
		switch {
		case ls.isDrained(p):
			if out.State = "drained"; out.Connections > 0 {
				out.State = "draining"
			}
		case p.open != nil:
		case p.err == nil: // it has just been undrained
			out.State, out.Reason = "waiting", errOpening.Error()
		case never(p.err):
			out.State, out.Reason = "failed", p.err.Error()
		default:
			out.State, out.Reason = "waiting", p.err.Error()
		}
		list = append(list, out)
	}
	for _, l := range ls.list {
		if l.err == nil {
			continue
		}
		out := observed.Listener{
			Name: l.Name, Transport: l.Transport.String(),
			Address: l.Address.WithPort(l.Port), State: "waiting", Reason: l.err.Error(),
		}
		if ls.drained[l.Name] {
			out.State = "drained"
		}
		list = append(list, out)
	}
	return list
}

// CountDrained returns the number of drained ports and of drained listeners that have none.
func (ls *Listeners) CountDrained() (n int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.ports {
		if ls.isDrained(p) {
			n++
		}
	}
	for _, l := range ls.list {
		if l.err != nil && ls.drained[l.Name] {
			n++
		}
	}
	return n
}
