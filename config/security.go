package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// security is the protection that a subsystem, or discovery, requires of hosts.
func security(p *subsystems.Security) lang.Value {
	return lang.Derived(lang.Words(p, []subsystems.Security{ // see requireSecurity
		0, subsystems.SecurityAuth, subsystems.SecurityTLS,
		subsystems.SecurityAuth | subsystems.SecurityTLS,
	}))
}

// requireSecurity makes secure_only the default of all security keys, before values are compared.
func (v *validator) requireSecurity() {
	c := v.c
	if !c.SecureOnly {
		return
	}
	require := func(r *subsystems.Security, path string) {
		if !v.Given(path) {
			*r = subsystems.SecurityAuth
		} else if *r == 0 && !v.Bad(path) {
			v.Add(path, "secure_only is true, so something has to be required",
				"Delete it, or secure_only.")
		}
	}
	require(&c.Discovery.Security, "discovery.security")
	for i := range c.Subsystems {
		require(&c.Subsystems[i].Security, fmt.Sprintf("subsystems[%d].security", i))
	}
}

// secureOnly reports violations of secure_only. It skips control.listen, which always uses TLS.
func (v *validator) secureOnly(c *Config) {
	if !c.SecureOnly {
		return
	}
	for name, e := range map[string]*Endpoint{"metrics": &c.Metrics, "web": &c.Web} {
		if e.Exposed() && (e.Certificate == "" || e.Token == Token{}) {
			v.Add(name+".listen", "secure_only is true, and other machines reach "+name,
				"Set "+name+".certificate, key and token_file, or use an address of this "+
					"machine alone: 127.0.0.1.")
		}
	}
	for i := range c.Subsystems {
		if c.Subsystems[i].AllowAnyHost {
			v.Add(fmt.Sprintf("subsystems[%d].allow_any_host", i),
				"secure_only is true, so hosts have to be named", "List them in hosts instead.")
		}
	}
	c.WithoutKey(func(path, host, key string) {
		v.Add(path, fmt.Sprintf("secure_only is true, and %s has no %s", host, key),
			fmt.Sprintf("Give it a %s in hosts, or delete it here.", key))
	})
}

// WithoutKey calls report for each host of a subsystem that lacks a key required by security. A
// host with a dhchap_key needs no tls_key where a listener allows generated PSKs.
func (c *Config) WithoutKey(report func(path, host, key string)) {
	hosts := map[string]*Host{}
	for i := range c.Hosts {
		hosts[c.Hosts[i].NQN] = &c.Hosts[i]
	}
	allowed := slices.ContainsFunc(c.Listeners, func(l Listener) bool {
		return l.TLS == fabric.TLSAllowed
	})
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		for j, nqn := range s.Hosts {
			h := cmp.Or(hosts[nqn], &Host{})
			path := fmt.Sprintf("subsystems[%d].hosts[%d]", i, j)
			switch {
			case s.Security&subsystems.SecurityAuth != 0 && h.Key == nil:
				report(path, nqn, "dhchap_key")
			case s.Security&subsystems.SecurityTLS != 0 && h.TLSKey == nil &&
				(h.Key == nil || !allowed):
				report(path, nqn, "tls_key")
			}
		}
	}
}
