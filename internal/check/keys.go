package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// Keys warns of unused keys, keys that prove nothing since any other name has access, and hosts
// that cannot connect without one. These are not errors: security must be easy to require.
func Keys(c *config.Config) (ps config.Problems) {
	var chap, tls bool
	for _, h := range c.Hosts {
		chap, tls = chap || h.Key != nil, tls || h.TLSKey != nil
	}
	ps = append(probeTLS(c, tls), ExpiringKeys(c, time.Now())...)
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

// SpaceInNQN is a problem in PSK identities, where spaces separate fields (TCP section 3.6.1.3).
const SpaceInNQN = "a name with a space cannot be that of a connection with TLS"

// probeTLS reports missing TLS, and warns of keys without listeners and listeners without keys.
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
		if c.Subsystems[i].Security&subsystems.SecurityTLS != 0 && !used {
			ps = append(ps, c.Warning(fmt.Sprintf("subsystems[%d].security", i),
				"no listener uses TLS, so no host can connect",
				"Set tls: required, or allowed, of a tcp listener."))
		}
		if s := &c.Subsystems[i]; s.Security&subsystems.SecurityTLS != 0 &&
			strings.Contains(s.NQN, " ") {
			ps = append(ps, c.Warning(fmt.Sprintf("subsystems[%d].nqn", i), SpaceInNQN,
				"Choose another name, or no security: tls."))
		}
	}
	for i, h := range c.Hosts {
		if h.TLSKey != nil && strings.Contains(h.NQN, " ") {
			ps = append(ps, c.Warning(fmt.Sprintf("hosts[%d].nqn", i), SpaceInNQN,
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

// replaceBefore is the time before the expiry of a key at which a warning is given.
const replaceBefore = 30 * 24 * time.Hour

// ExpiringKeys warns of hosts with keys that have expired, or will soon.
func ExpiringKeys(c *config.Config, now time.Time) (ps config.Problems) {
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
