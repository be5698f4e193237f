package group

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestFacts: gateways publish their settings and compare them.
func TestFacts(t *testing.T) {
	p := newPair(t)
	a := Facts{
		Same:   map[string]string{"lease": "5s", "namespace 1": "x", "namespace 2": "<y>"},
		Ranges: map[string][2]uint16{"IDs": {1, 100}}, Own: []string{"10.0.0.1:4420"},
	}
	b := Facts{
		Same:   map[string]string{"lease": "5s", "namespace 1": "z", "namespace 3": "y"},
		Ranges: map[string][2]uint16{"IDs": {100, 200}}, Own: a.Own,
	}
	differ := func(g int) string {
		return strings.Join(p.w.record.differences(names[g], p.machine(g).facts), "\n")
	}
	p.machine(0).Describe(0, a.bytes())
	p.pass(5, 0, 1)
	testutil.Equal(t, differ(0), "", "differences from a gateway that publishes nothing")
	testutil.Equal(t, differ(1), "", "differences of one")
	p.machine(1).Describe(p.w.clock(1), a.bytes())
	p.pass(5, 0, 1)
	testutil.Equal(t, differ(1), strings.Join([]string{
		`"IDs" overlap: 1 to 100 here, and 1 to 100 at gateway "a"`,
		`"10.0.0.1:4420" is here, and at gateway "a"`,
	}, "\n"), "")
	p.machine(1).Describe(p.w.clock(1), b.bytes())
	p.pass(5, 0, 1)
	testutil.Equal(t, differ(0), strings.Join([]string{
		`"namespace 1" is "x" here, and "z" at gateway "b"`,
		`"namespace 2" is "<y>" here, and "missing" at gateway "b"`,
		`"namespace 3" is "missing" here, and "y" at gateway "b"`,
		`"IDs" overlap: 1 to 100 here, and 100 to 200 at gateway "b"`,
		`"10.0.0.1:4420" is here, and at gateway "b"`,
	}, "\n"), "")
	version := p.w.version
	p.pass(20, 0, 1)
	testutil.Equal(t, p.w.version, version, "version of the record after a while")
}

// TestFactsLimits: the record stays readable whatever gateways publish, and a report short.
func TestFactsLimits(t *testing.T) {
	long := Facts{Same: map[string]string{"version": "1"}, Ranges: map[string][2]uint16{}}
	for i := range 2000 {
		name := fmt.Sprint("namespace ", i)
		long.Same[name], long.Ranges[name] = name, [2]uint16{1, 2}
		long.Own = append(long.Own, name)
	}
	other := long
	other.Same = map[string]string{"version": "1"}
	for i := range 1999 {
		other.Same[fmt.Sprint("namespace ", i)] = ""
	}
	r := &Record{Format: format}
	for i := range maxInstances {
		in := Instance{ID: fmt.Sprint(i), Gateway: fmt.Sprint(i), Facts: other.bytes()}
		r.Instances, r.Fenced = append(r.Instances, in), append(r.Fenced, in)
	}
	data := testutil.Value(r.Bytes())(t)
	r = testutil.Value(ParseRecord(data, 1))(t)
	list := r.differences("0", long.bytes())
	testutil.Equal(t, len(list), maxDifferences, "differences")
	testutil.True(t, strings.HasPrefix(list[0], `"a hash of the longer settings" is `), "%s", list)
	newer := long
	newer.Same = maps.Clone(long.Same)
	newer.Same["version"] = "2"
	r.Instances = r.Instances[:2]
	for _, facts := range [][]byte{newer.bytes(), testutil.Value(json.Marshal(&newer))(t)} {
		r.Instances[1].Facts = facts
		testutil.Equal(t, strings.Join(r.differences("0", long.bytes()), "\n"),
			`"version" is "1" here, and "2" at gateway "1"`, "after an upgrade")
	}
	r.Instances[1].Facts = json.RawMessage(`{"same": 1}`)
	testutil.Equal(t, len(r.differences("0", long.bytes())), 2, "those from another version")
	full := testutil.Value(json.Marshal(&long))(t)
	r.Instances[1].Facts, r.Instances[1].Gateway = full, strings.Repeat("x", 1<<16)
	list = r.differences("0", json.RawMessage(`{"same": {}}`))
	testutil.Equal(t, len(list), maxDifferences, "differences from a hostile gateway")
	for _, what := range list {
		testutil.True(t, len(what) < 2000, "%s", what)
	}
}

// TestElsewhere: gateways read the ports of others, within bounds, and the generation of all.
func TestElsewhere(t *testing.T) {
	facts := func(generation uint64, label string, ports int) *Facts {
		f := &Facts{Generation: generation}
		for i := range ports {
			f.Ports = append(f.Ports, Port{
				ID: uint16(i), Transport: "tcp", TLS: "off", Label: label,
				Addr: netip.MustParseAddrPort("[fd00::1]:4420"),
			})
		}
		return f
	}
	long := facts(9, strings.Repeat("x", 500), 9).bytes()
	testutil.True(t, len(long) < 3*maxOthers, "%d bytes", len(long))
	raw := testutil.Value(json.Marshal(facts(maxGeneration+1, "", 99)))(t)
	s := Status{Instances: []Instance{
		{Gateway: "a", Facts: facts(7, "", 2).bytes()},
		{Gateway: "b", Facts: facts(5, "l", 1).bytes()},
		{Gateway: "c", Facts: json.RawMessage(`{"ports": 1, "generation": 99}`)},
		{Gateway: "d", Facts: raw},
		{Gateway: "e"},
	}}
	ports, generation := s.Elsewhere("a")
	testutil.Equal(t, generation, 7, "the generation")
	testutil.MustEqual(t, len(ports), 1+MaxPorts, "ports")
	testutil.True(t, ports[0].Gateway == "b" && ports[0].Label == "l" && ports[1].Gateway == "d",
		"%+v", ports)
}
