package app

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mdns"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// setDiscovery changes what the discovery service says, and where it is announced.
func (s *Server) setDiscovery(c *config.Config) error {
	d := target.DiscoveryConfig{NQN: c.Discovery.NQN, Security: c.Discovery.Security}
	for _, r := range c.Discovery.Referrals {
		d.Referrals = append(d.Referrals, discovery.Referral{
			Addr: fabric.Addr{
				Transport: r.Transport, AddrPort: netip.AddrPortFrom(r.Address, r.Port),
			},
			NQN: r.NQN, Hosts: r.Hosts,
		})
	}
	err := s.target.SetDiscovery(d)
	if err == nil {
		s.discovery.Store(&c.Discovery)
		s.listeners.try()
	}
	return err
}

// probeHosts warns of hosts that have namespaces of a subsystem which does not allow them. It is no
// error: a host must be easy to remove.
func probeHosts(c *config.Config) (ps config.Problems) {
	for i, s := range c.Subsystems {
		if s.AllowAnyHost {
			continue
		}
		allowed := map[string]bool{}
		for _, h := range s.Hosts {
			allowed[h] = true
		}
		for j, n := range s.Namespaces {
			for k, h := range n.Hosts {
				if !allowed[h] {
					ps = append(ps, c.Warning(
						fmt.Sprintf("subsystems[%d].namespaces[%d].hosts[%d]", i, j, k),
						h+" is not among the hosts of the subsystem",
						"Add it there, or delete it here."))
				}
			}
		}
	}
	return ps
}

// announce announces the open ports by multicast DNS.
func (s *Server) announce(up []fabric.Addr, m *netif.State) {
	d := s.discovery.Load()
	if d == nil || !d.MDNS {
		s.mdns.Close()
		return
	}
	s.mdns.Set(announcedOn(d, up, m))
}

// announcedOn has the services of interfaces: each port on the one that has its address; a wildcard
// on every interface, with the first address of each family.
func announcedOn(d *config.Discovery, up []fabric.Addr, m *netif.State) map[string][]mdns.Service {
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	services := map[string][]mdns.Service{}
	for _, at := range up {
		done := map[string]bool{} // interfaces and families of a wildcard
		for _, a := range m.Addresses {
			ip, family := a.Addr.WithZone(""), fmt.Sprint(a.Interface, a.Is4())
			every, zone := at.Addr().IsUnspecified(), at.Addr().Zone()
			switch {
			case !a.Up:
			case len(d.Interfaces) > 0 && !slices.Contains(d.Interfaces, a.Interface):
			case len(d.Interfaces) == 0 && a.IsLoopback():
			case !every && at.Addr().Unmap().WithZone("") != ip:
			case zone != "" && zone != a.Interface: // which may have the same link-local address
			case every && (done[family] || at.Addr().Is4() && !a.Is4() || ip.IsLinkLocalUnicast()):
			default:
				done[family] = true
				services[a.Interface] = append(services[a.Interface],
					announced(host, at, netip.AddrPortFrom(ip, at.Port()), d.NQN))
			}
		}
	}
	return services
}

// announced is the discovery service at a port, as TP 8009 has it.
func announced(host string, at fabric.Addr, addr netip.AddrPort, nqn string) mdns.Service {
	if nqn == "" {
		nqn = nvme.DiscoveryNQN
	}
	typ, protocol := "_nvme-disc._tcp", "tcp"
	if at.Transport == nvme.TransportRDMA {
		typ, protocol = "_nvme-disc._udp", "roce"
	}
	// A dot would be another label.
	number := strings.NewReplacer(".", "-", ":", "-").Replace(addr.Addr().String())
	name := fmt.Sprintf("%s %s %d", host, number, addr.Port())
	return mdns.Service{
		Name: name[max(0, len(name)-63):], Type: typ, Host: "nvmf-target-" + number, Addr: addr,
		TXT: []string{"p=" + protocol, "nqn=" + nqn},
	}
}
