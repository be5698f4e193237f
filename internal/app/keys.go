package app

import (
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
)

// probeKeys warns of keys that prove nothing, because any other name will do, and of hosts that
// cannot connect without one. It is no error: security must be easy to require.
func probeKeys(c *config.Config) (ps config.Problems) {
	c.WithoutKey(func(path, host string) {
		ps = append(ps, c.Warning(path,
			host+" has no key, and security of the subsystem requires one",
			"Give it a dhchap_key in hosts, or delete it here."))
	})
	keys := slices.ContainsFunc(c.Hosts, func(h config.Host) bool { return h.Key != nil })
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		if keys && s.AllowAnyHost && s.Security == 0 {
			ps = append(ps, c.Warning(fmt.Sprintf("subsystems[%d].allow_any_host", i),
				"some hosts have keys, but others may connect without one",
				"List the hosts of the subsystem in hosts instead, or set security: auth."))
		}
	}
	return ps
}
