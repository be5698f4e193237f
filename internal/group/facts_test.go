package group

import (
	"encoding/json"
	"fmt"
	"maps"
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
