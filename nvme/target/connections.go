package target

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/shares"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// keepAliveInfo is the state of a keep alive timer, see admin.KeepAlive.
type keepAliveInfo struct{ timeout, left, margin time.Duration }

// connections are the connections of one reactor.
type connections struct {
	list []connection
	// alive has the controllers with an admin queue on the reactor.
	alive map[*controller]keepAliveInfo
}

// connection is a connection as its reactor sees it.
type connection struct {
	observed.Connection
	id   uint64        // of the session
	ctrl *controller   // nil before Connect
	link fabric.Linked // or nil
}

// Connections returns the connections in the order of subsystem, host, CNTLID and QID. Connections
// without a Connect come first. Each reactor is asked once, and answers in pieces; a connection
// takes it about a tenth of a microsecond. The error is that of ctx, if it ends before all reactors
// have answered.
func (t *Target) Connections(ctx context.Context) ([]observed.Connection, error) {
	parts, err := answers(ctx, t, func(h *Handler, answer func(*connections)) {
		c := &connections{alive: map[*controller]keepAliveInfo{}}
		c.list = make([]connection, 0, h.sessionCount.Load())
		h.post(func() { h.inPieces(h.sessions.Walk(c.add), func() { answer(c) }) })
	})
	if err != nil {
		return nil, err
	}
	all := map[uint64]connection{} // each once, even if a reactor has visited it twice
	alive := map[*controller]keepAliveInfo{}
	for _, c := range parts {
		for _, i := range c.list {
			all[i.id] = i
		}
		maps.Copy(alive, c.alive)
	}
	list := make([]observed.Connection, 0, len(all))
	for _, i := range all {
		i.setKeepAlive(alive[i.ctrl]) // zero if the admin queue has ended
		if i.link != nil {
			var l fabric.Link
			l, i.LinkKnown = i.link.Link()
			i.RTTSeconds, i.Retransmits = l.RTT.Seconds(), l.Retransmits
		}
		list = append(list, i.Connection)
	}
	slices.SortFunc(list, func(a, b observed.Connection) int {
		return cmp.Or(strings.Compare(a.Subsystem, b.Subsystem), strings.Compare(a.Host, b.Host),
			cmp.Compare(a.CNTLID, b.CNTLID), cmp.Compare(a.QID, b.QID),
			a.Remote.Compare(b.Remote))
	})
	return list, nil
}

// answers asks all reactors and returns their answers. The error is that of ctx, if it ends before
// all reactors have answered; then there are no answers.
func answers[T any](ctx context.Context, t *Target, ask func(h *Handler, answer func(T)),
) (list []T, err error) {
	t.mu.Lock()
	handlers := slices.Clone(t.handlers)
	t.mu.Unlock()
	came := make(chan T, len(handlers))
	for _, h := range handlers {
		ask(h, func(v T) { came <- v })
	}
	for range handlers {
		select {
		case v := <-came:
			list = append(list, v)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return list, nil
}

// askQueues implements controllers.Hooks.Queues.
func (c *controller) askQueues(most int) (<-chan []observed.Connection, int) {
	sessions := c.allQueues()
	sessions = sessions[max(len(sessions)-most, 0):]
	answers := make(chan []observed.Connection, len(sessions))
	for _, s := range sessions {
		s.h.post(func() {
			var list []observed.Connection
			if !s.closed {
				a := &connections{alive: map[*controller]keepAliveInfo{}}
				a.add(s)
				a.list[0].setKeepAlive(a.alive[c])
				list = append(list, a.list[0].Connection)
			}
			answers <- list
		})
	}
	return answers, len(sessions)
}

// DataShares returns the shares that hosts and networks have of the data memory of all reactors, in
// bytes. The error is that of ctx, if it ends before all reactors have answered.
func (t *Target) DataShares(ctx context.Context) (map[subnet.Owner]shares.Data, error) {
	parts, err := answers(ctx, t, func(h *Handler, answer func(map[subnet.Owner]shares.Data)) {
		h.post(func() { h.shares.Data(h.memory, answer) })
	})
	all := map[subnet.Owner]shares.Data{}
	for _, list := range parts {
		for key, s := range list {
			all[key] = shares.Data{Used: all[key].Used + s.Used, Most: all[key].Most + s.Most}
		}
	}
	return all, err
}

// add appends a queue, and returns how many steps that takes. Reactor of the queue.
func (list *connections) add(s *session) (steps int) {
	steps = 1
	i := connection{id: s.id, ctrl: s.ctrl}
	i.Connection = observed.Connection{
		QID: s.qid, Depth: int(s.size), Transport: s.info.Transport.String(), Local: s.info.Local,
		Remote: s.info.Remote, PortID: s.info.PortID, Reactor: s.h.index, InFlight: s.outstanding,
		AgeSeconds: time.Duration(s.h.loop.Now() - s.opened).Seconds(), Commands: s.commands,
		ReadBytes:    s.moved[fabric.ControllerToHost],
		WrittenBytes: s.moved[fabric.HostToController], NearlyFull: s.nearlyFull,
		Authenticated: s.authenticated(),
	}
	if t := s.info.TLS; t != nil {
		i.TLS = t.Cipher
	}
	i.link, _ = s.q.(fabric.Linked)
	if d, ok := s.q.(fabric.DigestReporter); ok {
		i.HeaderDigest, i.DataDigest = d.Digests()
	}
	if c := s.ctrl; c != nil && !s.unproven() {
		i.Host, i.Subsystem, i.CNTLID = c.HostNQN, c.sub.NQN, c.CNTLID
		i.Discovery = c.sub.Discovery
		if s.qid == 0 {
			list.alive[c] = c.keepAliveInfo()
			steps += 2 * subsystems.MaxIOQueues / queuesPerStep // at most: it looks at them twice
		}
	}
	list.list = append(list.list, i)
	return steps
}

func (i *connection) setKeepAlive(k keepAliveInfo) {
	i.KeepAliveTimeoutSeconds = k.timeout.Seconds()
	i.KeepAliveLeftSeconds, i.KeepAliveMarginSeconds = k.left.Seconds(), k.margin.Seconds()
}

// keepAliveInfo returns the state of the timer. Admin reactor.
func (c *controller) keepAliveInfo() (k keepAliveInfo) {
	k.timeout = c.alive.Timeout()
	k.left, k.margin = c.alive.Left(c.h.loop.Now(), c.traffic(), c.Ready.Load())
	return k
}

// Ports lists the listeners that the discovery log shows.
func (t *Target) Ports() []discovery.Port { return slices.Clone(t.shared.Discovery.Load().Ports) }

// DisconnectHost ends the associations of a host with a subsystem, or with all if subNQN is "", and
// returns how many there were. A host that is still allowed may connect again.
func (t *Target) DisconnectHost(hostNQN, subNQN string) int {
	n := 0
	for _, s := range append(slices.Collect(maps.Values(*t.table.Load())), t.discovery) {
		if subNQN != "" && subNQN != s.NQN {
			continue
		}
		s.each(func(c *controller) {
			if c.HostNQN == hostNQN {
				c.fail(errors.New("an operator disconnected the host"))
				n++
			}
		})
	}
	return n
}
