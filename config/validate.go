package config

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// validate checks several values together and reports conflicts.
func (d *decoder) validate(c *Config) {
	if n := len(c.Reactors.CPUs); n > 0 && c.Reactors.Count != 0 && c.Reactors.Count != n {
		d.add("reactors.count",
			fmt.Sprintf("%d reactors, but reactors.cpus names %d CPUs", c.Reactors.Count, n),
			"Delete reactors.count, or name one CPU for each reactor.")
	}
	if c.RDMA.InCapsuleSize == 0 {
		c.RDMA.InCapsuleSize = -1 // none; 0 is the default
	}
	for i := range c.Listeners {
		d.listener(&c.Listeners[i], fmt.Sprintf("listeners[%d]", i))
	}
	d.endpoint("metrics", &c.Metrics)
	d.endpoint("web", &c.Web)
	d.webTargets(c)
	c.Control.validate(d)
	for i := range c.Hosts {
		d.limits(&c.Hosts[i].Limits, fmt.Sprintf("hosts[%d]", i))
		d.authentication(&c.Hosts[i].Authentication, fmt.Sprintf("hosts[%d]", i))
	}
	d.discovery(c)
	d.secureOnly(c)
	d.some(c, "listeners", len(c.Listeners))
	d.some(c, "subsystems", len(c.Subsystems))
	for i := range c.Subsystems {
		d.subsystem(c, &c.Subsystems[i], fmt.Sprintf("subsystems[%d]", i))
	}
}

func (d *decoder) listener(l *Listener, path string) {
	if l.Transport == nvme.TransportTCP && len(l.Address.Device) > maxInterface {
		d.add(path+".address", fmt.Sprintf("%q has more than %d characters, as no network "+
			"interface has", l.Address.Device, maxInterface), "Correct it; ip link lists them.")
	}
	d.listens(socket{l.Name, l.Transport, l.Address, l.Port}, path,
		"Delete one of the two listeners.")
	switch {
	case l.TOS%4 != 0: // RFC 3168, section 5: the lowest two bits are ECN
		d.add(path+".tos", fmt.Sprintf("%d is not a multiple of 4", l.TOS),
			"Write four times the DSCP, for instance 104 for DSCP 26.")
	case l.TOS != 0 && l.Transport == nvme.TransportTCP:
		d.add(path+".tos", "listeners with transport: tcp have none", "Delete it.")
	}
	if l.TLS != fabric.TLSOff && l.Transport == nvme.TransportRDMA {
		d.add(path+".tls", "listeners with transport: rdma have none",
			"Delete it. On RDMA nothing is encrypted; use a network that others do not reach.")
	}
}

func (d *decoder) subsystem(c *Config, s *Subsystem, path string) {
	switch {
	case s.AllowAnyHost && len(s.Hosts) > 0:
		d.add(path+".hosts", "allow_any_host is true, so this list would have no effect",
			"Delete one of the two.")
	case !s.AllowAnyHost && len(s.Hosts) == 0 && c.Managed == "" && !d.bad[path+".hosts"] &&
		!d.bad[path+".allow_any_host"]:
		d.add(path, "no host may connect",
			"List the host NQNs (cat /etc/nvme/hostnqn on the host) in hosts, or set "+
				"allow_any_host: true.")
	}
	if s.CNTLIDMin > s.CNTLIDMax {
		d.add(path+".cntlid_min",
			fmt.Sprintf("%d is above cntlid_max, %d", s.CNTLIDMin, s.CNTLIDMax),
			"Exchange the two.")
	}
	if c.Reactors.Memory < 4*s.MaxTransfer {
		d.add(path+".max_transfer", fmt.Sprintf("%v is more than a quarter of reactors.memory, %v",
			Size(s.MaxTransfer), Size(c.Reactors.Memory)),
			"Reduce it, or give the reactors more memory: commands share it.")
	}
	if len(s.Namespaces) == 0 && c.Managed == "" && !d.bad[path+".namespaces"] {
		d.warn(path+".namespaces", "there are none, so hosts that connect find nothing",
			"Add them when there is storage.")
	}
	d.limits(&s.Limits, path)
	for i := range s.Namespaces {
		d.namespace(&s.Namespaces[i], fmt.Sprintf("%s.namespaces[%d]", path, i))
	}
}

func (d *decoder) limits(l *qos.Limits, path string) {
	path += ".limits.burst"
	if _, given := d.places[path]; given && l.IOPS == 0 && l.Bandwidth == 0 {
		d.add(path, "neither iops nor bandwidth has a limit, so it would have no effect",
			"Add one of the two, or delete it.")
	}
}

func (d *decoder) namespace(n *Namespace, path string) {
	d.limits(&n.Limits, path)
	if b := d.backend(n.Backend); b != nil && b.AlwaysAnswers {
		if _, given := d.places[path+".io_timeout"]; given && n.Timeout != 0 {
			d.add(path+".io_timeout", "backend "+n.Backend+
				" always answers, so it would have no effect", "Delete it.")
		}
		n.Timeout = 0
	}
}
