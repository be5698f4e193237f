package config

import (
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
)

// anaStates maps ANA groups to the states that last. Groups of the default state are left out.
type anaStates struct {
	p *map[uint32]nvme.ANAState
	// groups are the keys, set by Decode.
	groups lang.Mapping
}

// anaState is one of the states of p.
func anaState(p *nvme.ANAState) lang.Value {
	lasting := slices.DeleteFunc(slices.Clone(nvme.ANAStates[:]), func(s nvme.ANAState) bool {
		return s == nvme.ANAStateChange // a transition has an end
	})
	return lang.Words(p, lasting)
}

func (v *anaStates) Type() string {
	return "mapping of ANA groups to " + anaState(new(nvme.ANAState)).Type()
}

func (v *anaStates) String() string { return "" }

func (v *anaStates) Decode(d *lang.Decoder, n *yaml.Node, path string) {
	hint := fmt.Sprintf("Write {GROUP: STATE}, with groups from 1 to %d.", ana.MaxGroups)
	if n.Kind != yaml.MappingNode {
		d.Add(path, "must be a mapping of ANA groups to states, not "+lang.KindName(n), hint)
		return
	}
	states := make([]nvme.ANAState, ana.MaxGroups+1)
	v.groups = nil
	for group := 1; group <= ana.MaxGroups; group++ {
		states[group] = nvme.ANAStateOptimized
		v.groups = append(v.groups,
			lang.NewKey(strconv.Itoa(group), anaState(&states[group]), ""))
	}
	d.Mapping(n, path, v.groups, func(string) (what, _ string) { return "is no ANA group", hint })
	*v.p = map[uint32]nvme.ANAState{}
	for group, state := range states[1:] {
		if state != nvme.ANAStateOptimized {
			(*v.p)[uint32(group+1)] = state
		}
	}
}

func (v *anaStates) Flatten(all *lang.Settings, at lang.Setting) { v.groups.Flatten(all, at) }

func (v *anaStates) Schema() lang.Schema {
	return lang.Schema{
		"type":                 "object",
		"propertyNames":        lang.Schema{"pattern": "^[1-9][0-9]{0,2}$"},
		"additionalProperties": anaState(new(nvme.ANAState)).Schema(),
	}
}
