package target

import (
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
)

// Security is a set of requirements for the hosts of a subsystem, or of the discovery service,
// besides being allowed; see ADR 0037. The zero value requires nothing, though hosts with a key
// authenticate all the same.
type Security uint8

// The requirements.
const (
	SecurityAuth Security = 1 << iota // hosts authenticate
	SecurityTLS                       // connections are encrypted, so not over RDMA
)

// String is the requirement as the configuration has it.
func (r Security) String() string {
	return [...]string{"none", "auth", "tls", "auth+tls"}[r&(SecurityAuth|SecurityTLS)]
}

// lacks returns an error for the first requirement that a host does not meet, or nil.
// authenticated: the host has authenticated, or has to do so before anything else is served.
// encrypted: its connection is encrypted.
func (r Security) lacks(authenticated, encrypted bool) error {
	switch {
	case r&SecurityAuth != 0 && !authenticated:
		return association.ErrNoKey
	case r&SecurityTLS != 0 && !encrypted:
		return association.ErrNoTLS
	}
	return nil
}

// hasKey reports whether a host authenticates when it connects.
func (t *Target) hasKey(hostNQN string) bool { return t.auth.Policy(hostNQN) != nil }

// discoverableBy reports whether a host is told of a subsystem: not if it could not use that.
func (t *Target) discoverableBy(cfg *settings, hostNQN string) bool {
	return cfg.allows(hostNQN) && (cfg.Security&SecurityAuth == 0 || t.hasKey(hostNQN))
}

// authenticated reports whether the host has authenticated on the queue, or with the PSK of the
// queue. Reactor.
func (s *session) authenticated() bool {
	return s.ctrl != nil && !s.unproven() &&
		(s.auth != nil && s.auth.Proven || association.GeneratedPSK(s.info) != "")
}

// SecurityOf returns the requirements that a connection meets.
func SecurityOf(c *observed.Connection) (r Security) {
	if c.TLS != "" {
		r |= SecurityTLS
	}
	if c.Authenticated {
		r |= SecurityAuth
	}
	return r
}

// setSecurity changes the requirements of the discovery service. The caller holds t.mu.
func (t *Target) setSecurity(r Security) {
	now := *t.discovery.settings.Load()
	now.Security = r
	t.discovery.update(&now)
	t.discovery.enforce()
}

// EnforceKeys ends the controllers of hosts that have lost their key, and need one.
func (t *Target) EnforceKeys() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.keysChanged {
		return
	}
	t.keysChanged = false
	for _, s := range *t.table.Load() {
		s.enforce()
	}
	t.discovery.enforce()
	t.discoveryChanged() // see discoverableBy
}
