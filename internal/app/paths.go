package app

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rates"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// This file has the metrics of the paths between the target and its hosts.

// usageTimeout bounds the wait for the usage of a reactor.
const usageTimeout = time.Second

// hostTotals sums counters of hosts' connections, without growth after the last look.
type hostTotals struct {
	mu     sync.Mutex
	last   map[observed.ConnectionID]connectionCounts
	totals map[string]connectionCounts
}

type connectionCounts struct{ commands, nearlyFull, retransmits uint64 }

// add adds the growth of the counters of a connection since old. The port may belong to another
// connection by now.
func (c *connectionCounts) add(old, now connectionCounts) {
	if now.commands < old.commands {
		old = connectionCounts{}
	}
	c.commands += rates.Growth(old.commands, now.commands)
	c.nearlyFull += rates.Growth(old.nearlyFull, now.nearlyFull)
	c.retransmits += rates.Growth(old.retransmits, now.retransmits)
}

// update counts the growth of connections since the last call, and adds their state to hosts. mu
// must be held since before list was made: an older list would count everything again.
func (t *hostTotals) update(list []observed.Connection, hosts map[string]*metrics.Host) {
	if t.totals == nil {
		t.totals = map[string]connectionCounts{}
	}
	last := map[observed.ConnectionID]connectionCounts{}
	for _, c := range list {
		if c.Host == "" {
			continue
		}
		name := c.Host
		if hosts[name] == nil {
			name = ""
		}
		h := hosts[name]
		h.RTTSeconds = max(h.RTTSeconds, c.RTTSeconds)
		if c.QID == 0 {
			if !c.Discovery {
				h.Controllers++
			}
			if c.KeepAliveTimeoutSeconds > 0 {
				m := c.KeepAliveMarginSeconds / c.KeepAliveTimeoutSeconds
				if h.Margin < 0 || m < h.Margin {
					h.Margin = m
				}
			}
		}
		now := connectionCounts{retransmits: c.Retransmits}
		if c.QID != 0 {
			now.commands, now.nearlyFull = c.Commands, c.NearlyFull
		}
		key := c.ID()
		if !c.LinkKnown { // it is just ending, or never had one
			now.retransmits = t.last[key].retransmits
		}
		last[key] = now
		total := t.totals[name]
		total.add(t.last[key], now)
		t.totals[name] = total
	}
	t.last = last
	for name := range t.totals {
		if hosts[name] == nil {
			delete(t.totals, name)
		}
	}
	for name, h := range hosts {
		n := t.totals[name]
		h.Commands, h.NearlyFull, h.Retransmits = n.commands, n.nearlyFull, n.retransmits
	}
}

// hostMetrics returns the configured hosts, since others choose their names, an entry for the
// others, and the security of connections. It returns nil if a reactor does not answer.
func (s *Server) hostMetrics() (list []metrics.Host, secured metrics.Secured) {
	s.hostTotals.mu.Lock()
	defer s.hostTotals.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), s.usageTimeout)
	defer cancel()
	connections, err := s.target.Connections(ctx)
	if err != nil {
		return nil, nil
	}
	secured = metrics.Secured{}
	for i := range connections {
		c := &connections[i]
		secured[metrics.Kind{Transport: c.Transport, Security: subsystems.SecurityOf(c)}]++
	}
	hosts := map[string]*metrics.Host{"": {Margin: -1}}
	add := func(nqn string) { hosts[nqn] = &metrics.Host{NQN: nqn, Margin: -1} }
	c := s.current()
	for i := range c.Hosts {
		add(c.Hosts[i].NQN)
	}
	for i := range c.Subsystems {
		for _, nqn := range c.Subsystems[i].Hosts {
			add(nqn)
		}
	}
	s.hostTotals.update(connections, hosts)
	for _, h := range hosts {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b metrics.Host) int { return cmp.Compare(a.NQN, b.NQN) })
	return list, secured
}

func (s *Server) deviceMetrics() []observed.Device {
	if t, ok := s.transports[nvme.TransportRDMA].(*rdma.Transport); ok {
		return t.Devices()
	}
	return nil
}

// portCounters returns nil if a device does not answer.
func (s *Server) portCounters() []observed.PortCounter {
	ctx, cancel := context.WithTimeout(context.Background(), s.usageTimeout)
	defer cancel()
	return s.ports(ctx)
}

// expiries returns the ends of certificates and of keys of hosts, the soonest of each.
func (s *Server) expiries() (list []metrics.Expiry) {
	c := s.current()
	if t := s.metrics.tls.Load(); t != nil && c.Metrics.Certificate != "" {
		list = append(list, metrics.Expiry{
			Name: "metrics_certificate", At: t.Certificates[0].Leaf.NotAfter,
		})
	}
	if control := s.control.Load(); control != nil {
		if at := control.CertificateEnds(); !at.IsZero() {
			list = append(list, metrics.Expiry{Name: "control_certificate", At: at})
		}
	}
	var keys, old time.Time
	soonest := func(first *time.Time, at time.Time) {
		if !at.IsZero() && (first.IsZero() || at.Before(*first)) {
			*first = at
		}
	}
	for i := range c.Hosts {
		soonest(&keys, c.Hosts[i].Until)
		soonest(&old, c.Hosts[i].OldUntil)
	}
	if !keys.IsZero() {
		list = append(list, metrics.Expiry{Name: "host_keys", At: keys})
	}
	if !old.IsZero() {
		list = append(list, metrics.Expiry{Name: "old_host_keys", At: old})
	}
	return list
}
