package target

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// ConnectionInfo describes a connection, which is a queue, at one moment.
type ConnectionInfo struct {
	// HostNQN, SubNQN, CNTLID, QID and Depth are zero before a successful Connect, and the first
	// three until the host has authenticated.
	HostNQN, SubNQN string
	CNTLID, QID     uint16
	Discovery       bool // the subsystem is a discovery service
	// Depth is the number of entries: SQSIZE+1.
	Depth         int
	Transport     nvme.TransportType
	Local, Remote netip.AddrPort
	PortID        uint16
	Reactor       int // index
	InFlight      int // commands that are executed
	Age           time.Duration
	// Commands is the number of commands received, ReadBytes and WrittenBytes the data of
	// successful commands.
	Commands, ReadBytes, WrittenBytes uint64
	// KeepAlive is that of the controller.
	KeepAlive KeepAliveInfo
	// NearlyFull is how many commands began to be executed while at least three quarters of Depth
	// were, themselves included.
	NearlyFull uint64
	// Link is the state of the network path, if HasLink.
	Link    fabric.Link
	HasLink bool
	// HeaderDigest and DataDigest say that the queue has them.
	HeaderDigest, DataDigest bool
	// TLS is nil if the queue is not encrypted.
	TLS *fabric.TLS
	// Security is the security that the queue has, even if less is required. A PSK of secure
	// channel concatenation is both. Until Connect and authentication have succeeded there is no
	// SecurityAuth.
	Security Security
}

// KeepAliveInfo is the state of the keep alive timer of a controller.
type KeepAliveInfo struct {
	// Timeout is 0 if there is none. Left is the time left of it, at least, if the host sends
	// nothing more.
	Timeout, Left time.Duration
	// Margin is the least that was left in the last one or two minutes, to within half of Timeout
	// while the host sends other commands.
	Margin time.Duration
}

// connections are the connections of one reactor.
type connections struct {
	list []connection
	// alive has the controllers with an admin queue on the reactor.
	alive map[*controller]KeepAliveInfo
}

// connection is a connection as its reactor sees it.
type connection struct {
	ConnectionInfo
	id   uint64        // of the session
	ctrl *controller   // nil before Connect
	link fabric.Linked // or nil
}

// Connections returns the connections in the order of subsystem, host, CNTLID and QID. Connections
// without a Connect come first. Each reactor is asked once, and answers in pieces; a connection
// takes it about a tenth of a microsecond. The error is that of ctx, if it ends before all reactors
// have answered.
func (t *Target) Connections(ctx context.Context) ([]ConnectionInfo, error) {
	t.mu.Lock()
	handlers := slices.Clone(t.handlers)
	t.mu.Unlock()
	answers := make(chan *connections, len(handlers))
	for _, h := range handlers {
		c := &connections{alive: map[*controller]KeepAliveInfo{}}
		c.list = make([]connection, 0, h.sessionCount.Load())
		h.post(func() {
			h.inPieces(h.sessions.Walk(c.add), func() { answers <- c })
		})
	}
	all := map[uint64]connection{} // each once, even if a reactor has visited it twice
	alive := map[*controller]KeepAliveInfo{}
	for range handlers {
		select {
		case c := <-answers:
			for _, i := range c.list {
				all[i.id] = i
			}
			maps.Copy(alive, c.alive)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	list := make([]ConnectionInfo, 0, len(all))
	for _, i := range all {
		i.KeepAlive = alive[i.ctrl] // zero if the admin queue has ended
		if i.link != nil {
			i.Link, i.HasLink = i.link.Link()
		}
		list = append(list, i.ConnectionInfo)
	}
	slices.SortFunc(list, func(a, b ConnectionInfo) int {
		return cmp.Or(strings.Compare(a.SubNQN, b.SubNQN), strings.Compare(a.HostNQN, b.HostNQN),
			cmp.Compare(a.CNTLID, b.CNTLID), cmp.Compare(a.QID, b.QID),
			a.Remote.Compare(b.Remote))
	})
	return list, nil
}

// DataShare is how much data memory of all reactors an owner has and may have, in bytes.
type DataShare struct{ Used, Most int }

// DataShares returns the shares of the hosts and networks that use subsystems. The error is that of
// ctx, if it ends before all reactors have answered.
func (t *Target) DataShares(ctx context.Context) (map[subnet.Owner]DataShare, error) {
	t.mu.Lock()
	handlers := slices.Clone(t.handlers)
	t.mu.Unlock()
	answers := make(chan map[subnet.Owner]DataShare, len(handlers))
	for _, h := range handlers {
		h.post(func() {
			list := make(map[subnet.Owner]DataShare, len(h.owners))
			for key, o := range h.owners {
				if s := (DataShare{Used: o.Used()}); h.memory != nil {
					s.Most = h.memory.Most(&o.Share)
					list[key] = s
				}
			}
			answers <- list
		})
	}
	all := map[subnet.Owner]DataShare{}
	for range handlers {
		select {
		case list := <-answers:
			for key, s := range list {
				all[key] = DataShare{all[key].Used + s.Used, all[key].Most + s.Most}
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return all, nil
}

// add appends a queue, in one step. Reactor of the queue.
func (list *connections) add(s *session) int {
	i := connection{id: s.id, ctrl: s.ctrl}
	i.ConnectionInfo = ConnectionInfo{
		QID: s.qid, Depth: int(s.size), Transport: s.info.Transport, Local: s.info.Local,
		Remote: s.info.Remote, PortID: s.info.PortID, Reactor: s.h.index, InFlight: s.outstanding,
		Age: time.Duration(s.h.loop.Now() - s.opened), Commands: s.commands,
		ReadBytes:    s.moved[fabric.ControllerToHost],
		WrittenBytes: s.moved[fabric.HostToController], TLS: s.info.TLS,
		NearlyFull: s.nearlyFull, Security: s.security(),
	}
	i.link, _ = s.q.(fabric.Linked)
	if d, ok := s.q.(fabric.DigestReporter); ok {
		i.HeaderDigest, i.DataDigest = d.Digests()
	}
	if c := s.ctrl; c != nil && !s.unproven() {
		i.HostNQN, i.SubNQN, i.CNTLID = c.hostNQN, c.sub.nqn, c.cntlid
		i.Discovery = c.sub.discovery
		if s.qid == 0 {
			list.alive[c] = c.keepAliveInfo()
		}
	}
	list.list = append(list.list, i)
	return 1
}

// keepAliveInfo is the state of the timer. Traffic since the last check is noticed at the next one
// only. Admin reactor.
func (c *controller) keepAliveInfo() KeepAliveInfo {
	k := &c.alive
	left := k.lastSeen + k.period - c.h.loop.Now()
	if k.period == 0 || c.traffic() != k.seen || !c.ready.Load() {
		left = k.period
	}
	return KeepAliveInfo{time.Duration(k.period), time.Duration(max(left, 0)), c.margin()}
}

// Ports lists the listeners that the discovery log shows.
func (t *Target) Ports() []discovery.Port { return slices.Clone(t.discoveryTable.Load().Ports) }

// DisconnectHost ends the associations of a host with a subsystem, or with all if subNQN is "", and
// returns how many there were. A host that is still allowed may connect again.
func (t *Target) DisconnectHost(hostNQN, subNQN string) int {
	n := 0
	for _, s := range append(slices.Collect(maps.Values(*t.table.Load())), t.discovery) {
		if subNQN != "" && subNQN != s.nqn {
			continue
		}
		s.each(func(c *controller) {
			if c.hostNQN == hostNQN {
				c.fail(errors.New("an operator disconnected the host"))
				n++
			}
		})
	}
	return n
}
