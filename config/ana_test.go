package config

import (
	"maps"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestANAStates: a mapping of groups to states that last; what is optimized is the default.
func TestANAStates(t *testing.T) {
	file := func(states string) string {
		return "listeners: [{transport: tcp, address: 10.0.0.1, ana_states: " + states + "}]\n" +
			"subsystems: [{nqn: nqn.2026-11.io.nvmf-target:disk0, allow_any_host: true, " +
			"namespaces: [{nsid: 1, backend: ram, size: 1MiB, ana_group: 128}]}]\n"
	}
	c := testutil.Value(
		parse(t, file(`{2: non-optimized, "128": persistent-loss, 3: optimized}`)))(t)
	if got := c.Listeners[0].ANAStates; !maps.Equal(got, map[uint32]nvme.ANAState{
		2: nvme.ANAStateNonOptimized, 128: nvme.ANAStatePersistentLoss,
	}) || c.Subsystems[0].Namespaces[0].ANAGroup != 128 {
		t.Errorf("%v", got)
	}
	next := testutil.Value(parse(t, file("{2: inaccessible, 5: non-optimized}")))(t)
	var text []string
	for _, c := range Diff(c.Settings(), next.Settings()) {
		text = append(text, c.String())
	}
	want := "~ listener tcp 10.0.0.1:4420: ana_states.2: non-optimized -> inaccessible, " +
		"ana_states.5: optimized -> non-optimized, ana_states.128: persistent-loss -> optimized"
	if got := strings.Join(text, "\n"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	const key = "listeners[0].ana_states"
	for states, want := range map[string]string{
		"[2]":              "1:61: " + key + ": must be a mapping of ANA groups",
		"{0: optimized}":   key + ".0: is no ANA group",
		"{129: optimized}": key + ".129: is no ANA group",
		"{a: optimized}":   "Write {GROUP: STATE}, with groups from 1 to 128.",
		"{2: change}":      key + `.2: "change" is not possible here`,
		"{2: [optimized]}": key + ".2: must be text, not a list",

		`{2: optimized, "2": optimized}`: key + ".2: given twice",
	} {
		if _, err := parse(t, file(states)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", states, err, want)
		}
	}
}
