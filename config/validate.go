package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/config/lang"
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
	v.group(c)
	v.some("listeners", len(c.Listeners))
	v.some("subsystems", len(c.Subsystems))
	for i := range c.Subsystems {
		v.subsystem(c, &c.Subsystems[i], fmt.Sprintf("subsystems[%d]", i))
	}
}

// need reports a key at path that is given but has no effect without one of others (met).
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

// some reports an empty list, which only a target with a managed directory may have.
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
