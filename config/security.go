package config

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// needTLS are the values of security that nothing offers yet.
var needTLS = []string{"tls", "auth+tls", "concat"}

// security is what a subsystem, or discovery, requires of hosts.
func security(p *target.Security) Value {
	s := words(p, []target.Security{0, target.SecurityAuth}).(*scalar)
	s.decoded, s.initial = true, s.get() // see requireSecurity
	set := s.set
	s.set = func(n *yaml.Node) (what, hint string) {
		if what, hint = set(n); slices.Contains(needTLS, n.Value) {
			what = fmt.Sprintf("%q is not possible: this version has no TLS", n.Value)
		}
		return what, hint
	}
	return s
}

// requireSecurity makes secure_only the default of all keys security, before values are compared.
func (d *decoder) requireSecurity(c *Config) {
	if !c.SecureOnly {
		return
	}
	require := func(r *target.Security, path string) {
		if _, given := d.places[path]; !given {
			*r = target.SecurityAuth
		} else if *r == 0 && !d.bad[path] {
			d.add(path, "secure_only is true, so something has to be required",
				"Delete it, or secure_only.")
		}
	}
	require(&c.Discovery.Security, "discovery.security")
	for i := range c.Subsystems {
		require(&c.Subsystems[i].Security, fmt.Sprintf("subsystems[%d].security", i))
	}
}

// secureOnly reports what secure_only does not allow. What control.listen serves is never without
// TLS.
func (d *decoder) secureOnly(c *Config) {
	if !c.SecureOnly {
		return
	}
	if c.Metrics.Listen.IsValid() && !c.Metrics.Listen.Addr().Unmap().IsLoopback() {
		d.add("metrics.listen", "secure_only is true, and metrics are neither encrypted nor "+
			"protected by a password", "Use an address of this machine alone: 127.0.0.1.")
	}
	for i := range c.Subsystems {
		if c.Subsystems[i].AllowAnyHost {
			d.add(fmt.Sprintf("subsystems[%d].allow_any_host", i),
				"secure_only is true, so hosts have to be named", "List them in hosts instead.")
		}
	}
	c.WithoutKey(func(path, host string) {
		d.add(path, "secure_only is true, and "+host+" has no key",
			"Give it a dhchap_key in hosts, or delete it here.")
	})
}

// WithoutKey calls report for each host of a subsystem that cannot use it, because it requires
// authentication and the host has no key.
func (c *Config) WithoutKey(report func(path, host string)) {
	keys := map[string]bool{}
	for i := range c.Hosts {
		keys[c.Hosts[i].NQN] = c.Hosts[i].Key != nil
	}
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		for j, h := range s.Hosts {
			if s.Security&target.SecurityAuth != 0 && !keys[h] {
				report(fmt.Sprintf("subsystems[%d].hosts[%d]", i, j), h)
			}
		}
	}
}
