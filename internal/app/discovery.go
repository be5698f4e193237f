package app

import (
	"net/netip"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// setDiscovery changes what the discovery service says.
func (s *Server) setDiscovery(c *config.Config) error {
	d := target.DiscoveryConfig{NQN: c.Discovery.NQN}
	for _, r := range c.Discovery.Referrals {
		d.Referrals = append(d.Referrals, target.Referral{
			Addr: fabric.Addr{
				Transport: r.Transport, AddrPort: netip.AddrPortFrom(r.Address, r.Port),
			},
			NQN: r.NQN, Hosts: r.Hosts,
		})
	}
	return s.target.SetDiscovery(d)
}
