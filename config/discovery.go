package config

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// Discovery configures the discovery service and its announcements.
type Discovery struct {
	// NQN is "" if only the well-known one is used.
	NQN       string
	Referrals []Referral
	// Security is required of hosts that ask the discovery service.
	Security subsystems.Security
	// MDNS announces it by multicast DNS on Interfaces or, if empty, on the listeners' ones.
	MDNS       bool
	Interfaces []string
}

func (c *Discovery) keys() []lang.Key {
	return []lang.Key{
		lang.NewKey("nqn",
			nqn(&c.NQN, "this is the well-known name, which the service has anyway"),
			"A unique name for the discovery service; hosts that use the well-known name learn "+
				"it. Set it when hosts talk to several discovery services and have to tell them "+
				"apart.").Without("the well-known name only"),
		lang.NewKey("security", security(&c.Security),
			"The security required of hosts: `auth`, authentication with a `dhchap_key` (not "+
				"with nvme-cli before 3.0); `tls`, TLS with a `tls_key`; `auth+tls`, both. To "+
				"all other hosts, the service does not exist. Set it when a machine that merely "+
				"claims the NQN of a host must not see the names of subsystems."),
		lang.NewKey("referrals", lang.List(&c.Referrals, 0, 64, (*Referral).value),
			"Other discovery services that hosts are referred to.").Extended(),
		lang.NewKey("mdns", lang.Bool(&c.MDNS),
			"The service is announced by multicast DNS on the networks of the listeners. Set it "+
				"when hosts should find the service by themselves, for instance with nvme-stas. "+
				"RDMA listeners are announced as RoCE."),
		lang.NewKey("mdns_interfaces", lang.List(&c.Interfaces, 0, 64, func(i *string) lang.Value {
			return lang.Unique(lang.Checked(i, "network interface", nil, networkInterface),
				"Delete one of the two.")
		}),
			"The network interfaces where `mdns` announces the service. Set it to leave others "+
				"out.").Without("all with addresses of listeners"),
	}
}

// Referral is another discovery service.
type Referral struct {
	Transport nvme.TransportType
	Address   netip.Addr
	Port      uint16
	NQN       string
	// Hosts are the NQNs that receive the referral; empty means all.
	Hosts []string
}

// discoveryPort is the port that IANA has assigned to discovery services (nvme-disc).
const discoveryPort = 8009

func (r *Referral) value() lang.Value {
	r.Port, r.NQN = discoveryPort, nvme.DiscoveryNQN
	return lang.Mapping{
		lang.NewKey("transport", transport(&r.Transport), "How hosts connect to it.").
			Require("Use one of: rdma, tcp."),
		lang.NewKey("address", address(&r.Address), "Its IPv4 or IPv6 address.").Require("Add it."),
		lang.NewKey("port", lang.Int(&r.Port, 1, 0xFFFF),
			"Its port number. Set it when the service is not at the usual port."),
		lang.NewKey("nqn", nqn(&r.NQN, ""),
			"Its NQN. Set it when it is not the well-known one."),
		lang.NewKey("hosts", hostList(&r.Hosts),
			"The NQNs of the hosts that get this referral. Set it when the service is only for "+
				"these hosts.").
			Without("all"),
	}
}

func networkInterface(s string) (what, hint string) {
	if s == "" || len(s) > maxInterface || strings.ContainsAny(s, "/ \t") {
		return fmt.Sprintf("%q is not the name of a network interface", lang.Printable(s)),
			"ip link lists them."
	}
	return "", ""
}

// address is one IP address of another machine.
func address(p *netip.Addr) lang.Value {
	return lang.Unmarshaled(p, "IP address",
		hintOr("Write an IPv4 or IPv6 address; host names are not resolved."),
		func(a *netip.Addr) (what, hint string) {
			*a = a.Unmap()
			ip, why := *a, ""
			if ip.Is6() && ip.IsLinkLocalUnicast() {
				why = ": it is link-local, and they do not know by which of their interfaces"
			}
			if why != "" || ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" {
				return fmt.Sprintf("%v is not an address that hosts can connect to%s", ip, why),
					"Write an address that is the same for all hosts."
			}
			return "", ""
		})
}

// discovery reports conflicts of the discovery service with the rest of the configuration.
func (v *validator) discovery(c *Config) {
	for i := range c.Subsystems {
		if c.Discovery.NQN != "" && c.Subsystems[i].NQN == c.Discovery.NQN {
			v.Add("discovery.nqn", fmt.Sprintf("is the name of subsystems[%d]", i),
				"Give the discovery service another one.")
		}
	}
	v.need("discovery.mdns_interfaces", len(c.Discovery.Interfaces) > 0, c.Discovery.MDNS,
		"discovery.mdns")
	for i, r := range c.Discovery.Referrals {
		path := fmt.Sprintf("discovery.referrals[%d]", i)
		if r.Address.IsValid() && r.Transport != 0 {
			v.Once("referral", fmt.Sprintf("%v %v %s", r.Transport,
				netip.AddrPortFrom(r.Address, r.Port), r.NQN), path, "Delete one of the two.")
		}
	}
}
