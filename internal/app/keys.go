package app

import (
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// tlsPSKs returns the PSKs with this identity. If the host has no key it returns none, after the
// same time. See tcp.Config.
func (s *Server) tlsPSKs(identity []byte) (psks []auth.TLSPSK) {
	id, err := auth.ParseTLSIdentity(identity)
	if err != nil {
		return nil
	}
	if id.Generated {
		if p := s.target.GeneratedPSK(id.HostNQN, string(identity)); p != nil {
			psks = append(psks, *p)
		}
		return psks
	}
	return auth.WithIdentity(string(identity), id, s.hostTLSKeys(id.HostNQN))
}

// hostTLSKeys returns the valid keys of a host.
func (s *Server) hostTLSKeys(nqn string) []*auth.TLSKey {
	host, known := s.tlsKeys.Load(nqn)
	if !known {
		return nil
	}
	return host.(*config.Authentication).TLSKeys(time.Now())
}

// tlsKeyCounts reports whether a host still has a key. See tcp.Config.
func (s *Server) tlsKeyCounts(nqn string, k *auth.TLSKey) bool {
	return slices.ContainsFunc(s.hostTLSKeys(nqn), k.Equal)
}

// tlsKeysExpired reports whether a host has keys, but no valid one. See tcp.Config.
func (s *Server) tlsKeysExpired(nqn string) bool {
	host, known := s.tlsKeys.Load(nqn)
	return known && host.(*config.Authentication).Expired(time.Now())
}

// warnEvery is the interval of warnings while the target runs.
const warnEvery = 24 * time.Hour

// keyWatch logs the warnings of expiringKeys once a day, and when keys have expired. Loading a
// configuration has warned already.
type keyWatch struct{ warned, checked time.Time }

func (w *keyWatch) check(s *Server, now time.Time) {
	c := s.current()
	expired := slices.ContainsFunc(c.Hosts, func(h config.Host) bool {
		return h.Expired(now) && !h.Expired(w.checked)
	})
	w.checked = now
	if now.Sub(w.warned) < warnEvery && !expired {
		return
	}
	w.warned = now
	for _, p := range check.ExpiringKeys(c, now) {
		s.log.Warn(p.Error())
	}
}

// guardSecrets keeps the memory of the process out of core files if the configuration has keys of
// hosts, tokens, or private keys of certificates.
func guardSecrets(c *config.Config) {
	endpoint := func(e *config.Endpoint) bool { return e.Key != "" || e.Token != config.Token{} }
	if c.Control.Key != "" || endpoint(&c.Metrics) || endpoint(&c.Web) ||
		slices.ContainsFunc(c.WebTargets, func(w config.WebTarget) bool {
			return w.Token != nil
		}) ||
		slices.ContainsFunc(c.Hosts, func(h config.Host) bool {
			return h.Key != nil || h.TLSKey != nil
		}) {
		sys.PreventCoreDumps()
	}
}
