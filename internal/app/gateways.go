package app

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// This file makes the discovery log of each gateway list the ports of all gateways.

// DescribeEvery is the least time between records that change only for a generation of the log. A
// program may change it before it starts a server.
var DescribeEvery = 10 * time.Second

// offered returns the ports of this target for hosts of other gateways. A wildcard has the
// addresses of the machine; loopback is left out if there are others.
func (s *Server) offered() (list []group.Port) {
	labels := map[string]string{}
	for _, l := range s.current().Listeners {
		labels[l.Name] = l.Label
	}
	for _, p := range s.target.Ports() {
		ips := []netip.Addr{p.Addr.Addr().Unmap()}
		if ips[0].IsUnspecified() {
			ips = reachable(p.Addr)
		}
		for _, ip := range ips {
			if !ip.IsLinkLocalUnicast() {
				list = append(list, group.Port{
					ID: p.ID, Transport: p.Addr.Transport.String(), TLS: p.TLS.String(),
					Addr: netip.AddrPortFrom(ip, p.Addr.Port()), Label: labels[p.Listener],
				})
			}
		}
	}
	loopback := func(p group.Port) bool { return p.Addr.Addr().IsLoopback() }
	if other := slices.DeleteFunc(slices.Clone(list), loopback); len(other) > 0 {
		list = other
	}
	return list[:min(len(list), group.MaxPorts)]
}

// listGateways lists the ports of other gateways, for the subsystems with namespaces in groups that
// they share.
func (s *Server) listGateways(c *config.Config) {
	names := map[string]string{}
	for _, l := range c.Listeners {
		names[l.Label] = l.Name
	}
	served := map[uint32]map[string]bool{}
	for _, n := range volumes.All(c) {
		if served[n.ANAGroup] == nil {
			served[n.ANAGroup] = map[string]bool{}
		}
		served[n.ANAGroup][n.NQN] = true
	}
	var remotes []discovery.Remote
	at, generation := map[string]int{}, uint64(0)
	for _, id := range slices.Sorted(maps.Keys(s.groups.described)) {
		d := s.groups.described[id]
		generation = max(generation, d.generation)
		for i := range d.elsewhere {
			p := &d.elsewhere[i]
			r, ok := remote(p, names)
			if !ok {
				continue
			}
			key := fmt.Sprintf("%q %v", p.Gateway, r.Addr)
			if _, ok := at[key]; !ok {
				at[key] = len(remotes)
				remotes = append(remotes, r)
			}
			maps.Copy(remotes[at[key]].Subsystems, served[id])
		}
	}
	if err := s.state.RaiseGeneration(generation); err != nil {
		s.log.Error("the generation of other gateways cannot be stored", "err", err)
		generation = 0 // hosts could see it go back after a restart
	}
	s.target.SetGateways(remotes, generation)
}

// remote returns a port for the discovery log, if it is valid. names has the names of listeners
// here, by label.
func remote(p *group.Port, names map[string]string) (r discovery.Remote, ok bool) {
	r = discovery.Remote{Subsystems: map[string]bool{}}
	r.ID, r.Addr.AddrPort = p.ID, p.Addr
	if p.Label != "" {
		r.Listener = names[p.Label]
	}
	r.Addr.Transport = map[string]nvme.TransportType{
		"rdma": nvme.TransportRDMA, "tcp": nvme.TransportTCP,
	}[p.Transport]
	r.TLS = map[string]fabric.TLSPolicy{
		"allowed": fabric.TLSAllowed, "required": fabric.TLSRequired,
	}[p.TLS]
	ip := p.Addr.Addr()
	return r, r.Addr.Transport != 0 && ip.IsValid() && ip.Zone() == "" && !ip.IsUnspecified() &&
		!ip.IsMulticast() && p.Addr.Port() != 0
}
