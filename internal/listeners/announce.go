package listeners

import (
	"cmp"
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
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// SetDiscovery changes the answers of the discovery service, and where it is announced.
func (ls *Listeners) SetDiscovery(c *config.Config) error {
	d := subsystems.Discovery{NQN: c.Discovery.NQN, Security: c.Discovery.Security}
	for _, r := range c.Discovery.Referrals {
		d.Referrals = append(d.Referrals, discovery.Referral{
			Addr: fabric.Addr{
				Transport: r.Transport, AddrPort: netip.AddrPortFrom(r.Address, r.Port),
			},
			NQN: r.NQN, Hosts: r.Hosts,
		})
	}
	err := ls.Target.SetDiscovery(d)
	if err == nil {
		ls.discovery.Store(&c.Discovery)
		ls.try()
	}
	return err
}

// announce announces the open ports by multicast DNS.
func (ls *Listeners) announce(up []fabric.Addr, m *netif.State) {
	d := ls.discovery.Load()
	if d == nil || !d.MDNS {
		ls.mdns.Close()
		return
	}
	ls.mdns.Set(announcedOn(d, up, m))
}

// announcedOn returns the services of interfaces: each port on the one that has its address; a
// wildcard on every interface, with the first address of each family.
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
			case zone != "" && zone != a.Interface: // it may have the same link-local address
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

// announced returns the discovery service at a port (TP 8009).
func announced(host string, at fabric.Addr, addr netip.AddrPort, nqn string) mdns.Service {
	nqn = cmp.Or(nqn, nvme.DiscoveryNQN)
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
