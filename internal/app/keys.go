package app

import (
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
)

// probeKeys warns of keys that prove nothing, because any other name will do.
func probeKeys(c *config.Config) (ps config.Problems) {
	if !slices.ContainsFunc(c.Hosts, func(h config.Host) bool { return h.Key != nil }) {
		return nil
	}
	for i := range c.Subsystems {
		if c.Subsystems[i].AllowAnyHost {
			ps = append(ps, c.Warning(fmt.Sprintf("subsystems[%d].allow_any_host", i),
				"some hosts have keys, but others may connect without one",
				"List the hosts of the subsystem in hosts instead."))
		}
	}
	return ps
}
