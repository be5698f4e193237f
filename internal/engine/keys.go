package engine

import (
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TLSPSKs returns the PSKs with this identity, or none, after the same time. See tcp.Config.
func (e *Engine) TLSPSKs(identity []byte) (psks []auth.TLSPSK) {
	id, err := auth.ParseTLSIdentity(identity)
	if err != nil {
		return nil
	}
	if id.Generated {
		if p := e.Target.GeneratedPSK(id.HostNQN, string(identity)); p != nil {
			psks = append(psks, *p)
		}
		return psks
	}
	return auth.WithIdentity(string(identity), id, e.hostTLSKeys(id.HostNQN))
}

// hostTLSKeys returns the valid keys of a host.
func (e *Engine) hostTLSKeys(nqn string) []*auth.TLSKey {
	host, known := e.tlsKeys.Load(nqn)
	if !known {
		return nil
	}
	return host.(*config.Authentication).TLSKeys(time.Now())
}

// TLSKeyCounts reports whether a host still has a key. See tcp.Config.
func (e *Engine) TLSKeyCounts(nqn string, k *auth.TLSKey) bool {
	return slices.ContainsFunc(e.hostTLSKeys(nqn), k.Equal)
}

// TLSKeysExpired reports whether a host has keys, but no valid one. See tcp.Config.
func (e *Engine) TLSKeysExpired(nqn string) bool {
	host, known := e.tlsKeys.Load(nqn)
	return known && host.(*config.Authentication).Expired(time.Now())
}

// GuardSecrets keeps the memory of the process out of core files if the configuration has keys of
// hosts, tokens, or private keys of certificates.
func GuardSecrets(c *config.Config) {
	endpoint := func(e *config.Endpoint) bool { return e.Key != "" || e.Token != config.Token{} }
	if c.Group.Key != nil || c.Control.Key != "" || endpoint(&c.Metrics) || endpoint(&c.Web) ||
		slices.ContainsFunc(c.WebTargets, func(w config.WebTarget) bool {
			return w.Token != nil
		}) ||
		slices.ContainsFunc(c.Hosts, func(h config.Host) bool {
			return h.Key != nil || h.TLSKey != nil
		}) {
		sys.PreventCoreDumps()
	}
}
