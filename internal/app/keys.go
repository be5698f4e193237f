package app

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target"
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

const (
	// replaceBefore is the time before the expiry of a key at which a warning is given.
	replaceBefore = 30 * 24 * time.Hour
	// warnEvery is the interval of warnings while the target runs.
	warnEvery = 24 * time.Hour
)

// expiringKeys warns of hosts with keys that have expired, or will soon.
func expiringKeys(c *config.Config, now time.Time) (ps config.Problems) {
	for i := range c.Hosts {
		h := &c.Hosts[i]
		if h.Until.IsZero() || h.Until.Sub(now) >= replaceBefore {
			continue
		}
		what := "the keys of the host expire on %s, and it cannot connect any more then"
		if h.Expired(now) {
			what = "the keys of the host expired on %s, and it cannot connect"
		}
		ps = append(ps, c.Warning(fmt.Sprintf("hosts[%d].keys_until", i),
			fmt.Sprintf(what, h.Until.Local().Format(time.DateTime)),
			"Give it new ones, and another date; the ones before can be dhchap_old_key and "+
				"tls_old_key meanwhile."))
	}
	return ps
}

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
	for _, p := range expiringKeys(c, now) {
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

// probeKeys warns of keys that are unused, or prove nothing because any other name has access, and
// of hosts that cannot connect without a key. It is not an error, because security must be easy to
// require.
func probeKeys(c *config.Config) (ps config.Problems) {
	var chap, tls bool
	for _, h := range c.Hosts {
		chap, tls = chap || h.Key != nil, tls || h.TLSKey != nil
	}
	ps = append(probeTLS(c, tls), expiringKeys(c, time.Now())...)
	c.WithoutKey(func(path, host, key string) {
		ps = append(ps, c.Warning(path,
			fmt.Sprintf("%s has no %s, and security of the subsystem requires one", host, key),
			fmt.Sprintf("Give it a %s in hosts, or delete it here.", key)))
	})
	required := !slices.ContainsFunc(c.Listeners, func(l config.Listener) bool {
		return l.TLS != fabric.TLSRequired
	})
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		if s.AllowAnyHost && s.Security == 0 && (chap || tls && !required) {
			ps = append(ps, c.Warning(fmt.Sprintf("subsystems[%d].allow_any_host", i),
				"some hosts have keys, but others may connect without one",
				"List the hosts of the subsystem in hosts instead, or set security: auth."))
		}
	}
	return ps
}

// spaceInNQN: a PSK identity has spaces between its fields (TCP section 3.6.1.3).
const spaceInNQN = "a name with a space cannot be that of a connection with TLS"

// probeTLS reports TLS that this program does not have. It warns of TLS keys without listeners for
// them and the other way around.
func probeTLS(c *config.Config, keys bool) (ps config.Problems) {
	used := false
	for i, l := range c.Listeners {
		used = used || l.TLS != fabric.TLSOff
		if err := openssl.Supported(); err != nil && l.TLS != fabric.TLSOff {
			ps = append(ps, c.Problem(fmt.Sprintf("listeners[%d].tls", i), err.Error(),
				"Use another build, or tls: off."))
		}
		if l.TLS == fabric.TLSRequired && !keys {
			ps = append(ps, c.Warning(fmt.Sprintf("listeners[%d].tls", i),
				"no host has a tls_key, so none can connect",
				"Give the hosts keys: nvmf-target key gen --tls."))
		}
	}
	for i := range c.Subsystems {
		if c.Subsystems[i].Security&target.SecurityTLS != 0 && !used {
			ps = append(ps, c.Warning(fmt.Sprintf("subsystems[%d].security", i),
				"no listener uses TLS, so no host can connect",
				"Set tls: required, or allowed, of a tcp listener."))
		}
		if s := &c.Subsystems[i]; s.Security&target.SecurityTLS != 0 &&
			strings.Contains(s.NQN, " ") {
			ps = append(ps, c.Warning(fmt.Sprintf("subsystems[%d].nqn", i), spaceInNQN,
				"Choose another name, or no security: tls."))
		}
	}
	for i, h := range c.Hosts {
		if h.TLSKey != nil && strings.Contains(h.NQN, " ") {
			ps = append(ps, c.Warning(fmt.Sprintf("hosts[%d].nqn", i), spaceInNQN,
				"Give the host another name, or no tls_key."))
		}
		if h.TLSKey != nil && !used {
			ps = append(ps, c.Warning(fmt.Sprintf("hosts[%d].tls_key", i),
				"no listener uses TLS, so it has no effect",
				"Set tls: required, or allowed, of a tcp listener."))
		}
	}
	return ps
}
