package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// validator checks several values of a configuration together.
type validator struct {
	*lang.Decoder
	c        *Config
	backends kinds
	sockets  []socket
}

// validate checks several values together and reports conflicts.
func (v *validator) validate() {
	c := v.c
	if n := len(c.Reactors.CPUs); n > 0 && c.Reactors.Count != 0 && c.Reactors.Count != n {
		v.Add("reactors.count",
			fmt.Sprintf("%d reactors, but reactors.cpus names %d CPUs", c.Reactors.Count, n),
			"Delete reactors.count, or name one CPU for each reactor.")
	}
	if c.RDMA.InCapsuleSize == 0 {
		c.RDMA.InCapsuleSize = -1 // none; 0 is the default
	}
	for i := range c.Listeners {
		v.listener(&c.Listeners[i], fmt.Sprintf("listeners[%d]", i))
	}
	v.endpoint("metrics", &c.Metrics)
	v.endpoint("web", &c.Web)
	v.webTargets(c)
	c.Control.validate(v)
	for i := range c.Hosts {
		v.limits(&c.Hosts[i].Limits, fmt.Sprintf("hosts[%d]", i))
		v.authentication(&c.Hosts[i].Authentication, fmt.Sprintf("hosts[%d]", i))
	}
	v.discovery(c)
	v.secureOnly(c)
	v.some("listeners", len(c.Listeners))
	v.some("subsystems", len(c.Subsystems))
	for i := range c.Subsystems {
		v.subsystem(c, &c.Subsystems[i], fmt.Sprintf("subsystems[%d]", i))
	}
}

// need reports a key at path that is given although it has no effect without one of others, which
// met says is there.
func (v *validator) need(path string, given, met bool, others ...string) {
	if !given || met || slices.ContainsFunc(others, v.Bad) {
		return
	}
	entry := path[:strings.LastIndexByte(path, '.')]
	for i, other := range others {
		if strings.Contains(entry, "]") { // of the same entry of a list
			others[i] = strings.TrimPrefix(other, entry+".")
		}
	}
	v.Add(path, "has no effect without "+strings.Join(others, " or "), "Delete it, or set that.")
}

// some reports a list without entries. Only a target with a managed directory may have an empty
// list.
func (v *validator) some(list string, entries int) {
	if entries > 0 || v.c.Managed != "" || v.Bad("") {
		return
	}
	what := "is missing"
	if v.Given(list) {
		what = "is empty"
	}
	v.Add(list, what, "Add at least one entry, or set managed.")
}

func (v *validator) listener(l *Listener, path string) {
	if l.Transport == nvme.TransportTCP && len(l.Address.Device) > maxInterface {
		v.Add(path+".address", fmt.Sprintf("%q has more than %d characters, as no network "+
			"interface has", l.Address.Device, maxInterface), "Correct it; ip link lists them.")
	}
	v.listens(socket{l.Name, l.Transport, l.Address, l.Port}, path,
		"Delete one of the two listeners.")
	switch {
	case l.TOS%4 != 0: // RFC 3168, section 5: the lowest two bits are ECN
		v.Add(path+".tos", fmt.Sprintf("%d is not a multiple of 4", l.TOS),
			"Write four times the DSCP, for instance 104 for DSCP 26.")
	case l.TOS != 0 && l.Transport == nvme.TransportTCP:
		v.Add(path+".tos", "listeners with transport: tcp have none", "Delete it.")
	}
	if l.TLS != fabric.TLSOff && l.Transport == nvme.TransportRDMA {
		v.Add(path+".tls", "listeners with transport: rdma have none",
			"Delete it. On RDMA nothing is encrypted; use a network that others do not reach.")
	}
}

func (v *validator) subsystem(c *Config, s *Subsystem, path string) {
	switch {
	case s.AllowAnyHost && len(s.Hosts) > 0:
		v.Add(path+".hosts", "allow_any_host is true, so this list would have no effect",
			"Delete one of the two.")
	case !s.AllowAnyHost && len(s.Hosts) == 0 && c.Managed == "" && !v.Bad(path+".hosts") &&
		!v.Bad(path+".allow_any_host"):
		v.Add(path, "no host may connect",
			"List the host NQNs (cat /etc/nvme/hostnqn on the host) in hosts, or set "+
				"allow_any_host: true.")
	}
	if s.CNTLIDMin > s.CNTLIDMax {
		v.Add(path+".cntlid_min",
			fmt.Sprintf("%d is above cntlid_max, %d", s.CNTLIDMin, s.CNTLIDMax),
			"Exchange the two.")
	}
	if c.Reactors.Memory < 4*s.MaxTransfer {
		v.Add(path+".max_transfer", fmt.Sprintf("%v is more than a quarter of reactors.memory, %v",
			lang.Size(s.MaxTransfer), lang.Size(c.Reactors.Memory)),
			"Reduce it, or give the reactors more memory: commands share it.")
	}
	if len(s.Namespaces) == 0 && c.Managed == "" && !v.Bad(path+".namespaces") {
		v.AddWarning(path+".namespaces", "there are none, so hosts that connect find nothing",
			"Add them when there is storage.")
	}
	v.limits(&s.Limits, path)
	for i := range s.Namespaces {
		v.namespace(&s.Namespaces[i], fmt.Sprintf("%s.namespaces[%d]", path, i))
	}
}

func (v *validator) limits(l *qos.Limits, path string) {
	path += ".limits."
	v.need(path+"burst", v.Given(path+"burst"), l.IOPS != 0 || l.Bandwidth != 0, path+"iops",
		path+"bandwidth")
}

func (v *validator) namespace(n *Namespace, path string) {
	v.limits(&n.Limits, path)
	if b := v.backends.find(n.Backend); b != nil && b.AlwaysAnswers {
		if v.Given(path+".io_timeout") && n.Timeout != 0 {
			v.Add(path+".io_timeout", "backend "+n.Backend+
				" always answers, so it would have no effect", "Delete it.")
		}
		n.Timeout = 0
	}
}
