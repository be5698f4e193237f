package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
)

// anaStates maps ANA groups to the states that last.
type anaStates struct {
	p *map[uint32]nvme.ANAState
}

// anaState is one of the states of p.
func anaState(p *nvme.ANAState) Value {
	return words(p, slices.DeleteFunc(slices.Clone(nvme.ANAStates[:]), func(s nvme.ANAState) bool {
		return s == nvme.ANAStateChange // a transition has an end
	}))
}

// Type implements Value.
func (v *anaStates) Type() string {
	return "mapping of ANA groups to " + anaState(new(nvme.ANAState)).Type()
}

// String implements Value.
func (v *anaStates) String() string { return "" }

func (v *anaStates) decode(d *decoder, n *yaml.Node, path string) {
	hint := fmt.Sprintf("Write {GROUP: STATE}, with groups from 1 to %d.", ana.MaxGroups)
	if n.Kind != yaml.MappingNode {
		d.add(path, "must be a mapping of ANA groups to states, not "+kindName(n), hint)
		return
	}
	states := map[uint32]nvme.ANAState{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		group, err := strconv.ParseUint(key.Value, 10, 32)
		at := join(path, printable(key.Value))
		switch {
		case err != nil || group < 1 || group > ana.MaxGroups:
			d.addAt(d.placeOf(key), at, "is no ANA group", hint)
			continue
		case states[uint32(group)] != 0:
			d.addAt(d.placeOf(key), at, "given twice", "Delete one of the two.")
			continue
		}
		state := nvme.ANAStateOptimized
		d.value(anaState(&state), n.Content[i+1], at)
		states[uint32(group)] = state
	}
	maps.DeleteFunc(states, func(_ uint32, s nvme.ANAState) bool {
		return s == nvme.ANAStateOptimized // the default
	})
	*v.p = states
}

func (v *anaStates) flatten(o *object, at setting) {
	at.written, at.unset = true, nvme.ANAStateOptimized.String()
	for _, group := range slices.Sorted(maps.Keys(*v.p)) {
		group, state := strconv.Itoa(int(group)), (*v.p)[group]
		s := at
		s.key, s.value = join(at.key, group), state.String()
		o.settings = append(o.settings, s)
	}
}

func (v *anaStates) schema([]Backend) schema {
	return schema{
		"type":                 "object",
		"propertyNames":        schema{"pattern": "^[1-9][0-9]{0,2}$"},
		"additionalProperties": anaState(new(nvme.ANAState)).schema(nil),
	}
}
