package subsystems

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Hosts are the settings of hosts in the configuration, for all subsystems. Readers take no lock;
// the caller of SetLimits and SetNetworks has one.
type Hosts struct {
	limiters atomic.Pointer[map[string]*qos.Limiter]
	networks atomic.Pointer[map[string][]netip.Prefix]
	known    sync.Map
}

// NewHosts returns the settings of no host.
func NewHosts() *Hosts {
	h := new(Hosts)
	h.limiters.Store(&map[string]*qos.Limiter{})
	h.networks.Store(&map[string][]netip.Prefix{})
	return h
}

// SetLimits sets the limits of a host, and reports whether that changes its limiter.
func (h *Hosts) SetLimits(nqn string, l qos.Limits) (changed bool) {
	all := maps.Clone(*h.limiters.Load())
	n := qos.NewLimiter(l, all[nqn])
	if n == all[nqn] {
		return false
	}
	if all[nqn] = n; n == nil {
		delete(all, nqn)
	}
	h.limiters.Store(&all)
	return true
}

// Limiter returns the limiter of a host, nil if it has none.
func (h *Hosts) Limiter(nqn string) *qos.Limiter { return h.Limiters()[nqn] }

// Limiters returns the limiters of all hosts, which are not changed.
func (h *Hosts) Limiters() map[string]*qos.Limiter { return *h.limiters.Load() }

// SetNetworks binds a host to networks, or to none, and reports whether that is a change.
func (h *Hosts) SetNetworks(nqn string, networks []netip.Prefix) (changed bool) {
	all := maps.Clone(*h.networks.Load())
	if slices.Equal(all[nqn], networks) {
		return false
	}
	if all[nqn] = networks; len(networks) == 0 {
		delete(all, nqn)
	}
	h.networks.Store(&all)
	return true
}

// comesFromNetworks reports whether a host that is bound to networks connects from one of them.
func (h *Hosts) comesFromNetworks(nqn string, from netip.Addr) bool {
	networks := (*h.networks.Load())[nqn]
	from = from.Unmap().WithZone("")
	return networks == nil ||
		slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(from) })
}

// SetKnown records whether the configuration lists a host, whichever subsystems allow it.
func (h *Hosts) SetKnown(nqn string, known bool) {
	if known {
		h.known.Store(nqn, nil)
	} else {
		h.known.Delete(nqn)
	}
}

// Knows reports whether the configuration has the NQN of a host: in its list of hosts, or among the
// hosts of a subsystem. Where any host is allowed, a host may have made up its NQN.
func (h *Hosts) Knows(nqn string, s *Settings) bool {
	_, known := h.known.Load(nqn)
	return known || s.hosts[nqn]
}
