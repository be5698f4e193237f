package subsystems

import (
	"cmp"
	"maps"
	"net/netip"

	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Settings are the part of a subsystem that can be changed while hosts use it. They are immutable:
// the subsystem gets others, and a controller keeps the settings that it was created with, because
// its host has been told of them.
type Settings struct {
	Config    // without Hosts, Listeners and Namespaces
	hosts     map[string]bool
	listeners map[string]bool // nil: all
	Limiter   *qos.Limiter    // nil: no limits
}

// NewSettings returns the settings of cfg. They take the place of old, which may be nil.
func NewSettings(cfg Config, old *Settings) *Settings {
	old = cmp.Or(old, &Settings{})
	s := &Settings{
		Config: cfg, hosts: setOf(cfg.Hosts), listeners: setOf(cfg.Listeners),
		Limiter: qos.NewLimiter(cfg.Limits, old.Limiter),
	}
	s.Hosts, s.Listeners, s.Namespaces = nil, nil, nil
	return s
}

// setOf makes a set; nil if there is nothing in the list.
func setOf(list []string) map[string]bool {
	if len(list) == 0 {
		return nil
	}
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}

// Name implements discovery.Subsystem.
func (s *Settings) Name() string { return s.NQN }

// ServedBy implements discovery.Subsystem.
func (s *Settings) ServedBy() map[string]bool { return s.listeners }

// Allows reports whether a host may use the subsystem.
func (s *Settings) Allows(hostNQN string) bool { return s.AllowAnyHost || s.hosts[hostNQN] }

// SamePlaces reports whether s can be reached by the same hosts through the same listeners as o.
func (s *Settings) SamePlaces(o *Settings) bool {
	if s.AllowAnyHost != o.AllowAnyHost || s.Security != o.Security ||
		!maps.Equal(s.listeners, o.listeners) {
		return false
	}
	return s.AllowAnyHost || maps.Equal(s.hosts, o.hosts)
}

// Applicant is a host that asks for a controller, or has one.
type Applicant struct {
	NQN      string
	Listener string // through which it comes
	From     netip.Addr
	// Authenticated: the host has authenticated, or has to do so before anything else is served.
	// Encrypted: its connection is encrypted.
	Authenticated, Encrypted bool
}

// Permits returns the reason why a host may not have a controller of the subsystem; nil: it may.
func (s *Settings) Permits(a *Applicant, h *Hosts) error {
	switch {
	case s.listeners != nil && !s.listeners[a.Listener]:
		return association.ErrNotServed
	case !s.Allows(a.NQN):
		return association.ErrNotAllowed
	case !h.comesFromNetworks(a.NQN, a.From):
		return association.ErrElsewhere
	case s.Security&SecurityAuth != 0 && !a.Authenticated:
		return association.ErrNoKey
	case s.Security&SecurityTLS != 0 && !a.Encrypted:
		return association.ErrNoTLS
	}
	return nil
}
