package config

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// settings parses a file.
func settings(t *testing.T, text string) Settings {
	t.Helper()
	c, err := parse(t, text)
	testutil.MustTrue(t, err == nil, "%v\n%s", err, text)
	return c.Settings()
}

// lines formats changes, one line each.
func lines(changes []Change) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

const diffBase = `
listeners:
  - {transport: tcp, address: 10.0.0.1}
  - {transport: tcp, address: 10.0.0.2, port: 0}
  - {transport: tcp, address: 10.0.0.2, port: 0}
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:a
    hosts: [nqn.2026-11.io.nvmf-target:h1, nqn.2026-11.io.nvmf-target:h2]
    namespaces:
      - {nsid: 1, backend: ram, size: 1GiB}
      - {nsid: 2, backend: file, path: /a2, size: 1GiB}
      - {nsid: 3, backend: pass, of: {backend: pass, of: {backend: file, path: /a3, size: 1GiB}}}
      - {nsid: 4, backend: pass, of: {backend: ram, size: 1GiB}}
  - nqn: nqn.2026-11.io.nvmf-target:b
    allow_any_host: true
    namespaces: [{nsid: 1, backend: "null", size: 1GiB}]
`

func TestDiffMarksStorage(t *testing.T) {
	wanted := strings.Replace(diffBase, "/a3", "/a4", 1)
	wanted = strings.Replace(wanted, "nsid: 3,", "nsid: 3, read_only: true,", 1)
	got := Diff(settings(t, diffBase), settings(t, wanted))
	want := []lang.KeyChange{
		{Key: "read_only", Old: "false", New: "true"},
		{Key: "of.of.path", Old: "/a3", New: "/a4", Storage: true},
	}
	testutil.True(t, len(got) == 1 && slices.Equal(got[0].Keys, want), "got %+v, want %+v", got,
		want)
}

// TestDiffOfRandomFiles checks the invariants of Diff on pairs of random configurations.
func TestDiffOfRandomFiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	a, changed := randomFile(r), 0
	for range 300 {
		b := randomFile(r)
		from, to := settings(t, written(r, a)), settings(t, written(r, b))
		if same := Diff(to, settings(t, written(r, b))); len(same) > 0 {
			t.Fatalf("the order of lists changes\n%s", lines(same))
		}
		changes := Diff(from, to)
		changed += len(changes)
		if got := applied(t, from, changes); !maps.EqualFunc(got, flat(to), maps.Equal) {
			t.Fatalf("got  %v\nwant %v\n%s", got, flat(to), lines(changes))
		}
		merged := Merge(from, to)
		for _, c := range Diff(from, merged) {
			for _, k := range c.Keys {
				testutil.MustTrue(t, !k.Restart, "a merge needs a restart: %v", c)
			}
		}
		for _, c := range Diff(merged, to) {
			for _, k := range c.Keys {
				testutil.MustTrue(t, c.Op == Modify && k.Restart,
					"a merge is without a live change: %v", c)
			}
		}
		a = b
	}
	testutil.True(t, changed >= 1000, "only %d changes", changed)
}

// settingID is a key, or an entry of the list under the key.
type settingID struct{ key, entry string }

// flat returns settings as a map.
func flat(s Settings) map[Object]map[settingID]string {
	m := map[Object]map[settingID]string{}
	for _, o := range s.objects {
		m[o.Object] = map[settingID]string{}
		for _, k := range (lang.Settings{}).Changes(o.Settings) {
			id := settingID{key: k.Key}
			if k.Entry {
				id.entry = k.New
			}
			m[o.Object][id] = k.New
		}
	}
	return m
}

// applied carries out changes one by one and checks that their order is possible.
func applied(t *testing.T, running Settings, changes []Change) map[Object]map[settingID]string {
	t.Helper()
	m, unset := flat(running), map[Object]map[string]string{}
	for _, o := range running.objects {
		unset[o.Object] = map[string]string{}
		for _, k := range (lang.Settings{}).Changes(o.Settings) {
			unset[o.Object][k.Key] = k.Old
		}
	}
	for _, c := range changes {
		keys, exists := m[c.Object]
		testutil.MustTrue(t, exists == (c.Op != Add), "not possible: %v", c)
		switch c.Op {
		case Add:
			if _, ok := m[Object{Kind: KindSubsystem, NQN: c.NQN}]; !ok && c.Kind == KindNamespace {
				t.Fatalf("its subsystem does not exist: %v", c)
			}
			keys = map[settingID]string{}
			m[c.Object] = keys
		case Remove:
			delete(m, c.Object)
			for o := range m {
				testutil.MustTrue(t, c.Kind != KindSubsystem || o.NQN != c.NQN,
					"it still has namespaces: %v", c)
			}
		}
		for _, k := range c.Keys {
			switch id := (settingID{key: k.Key}); {
			case k.Entry:
				if k.Old != "" {
					delete(keys, settingID{k.Key, k.Old})
				} else {
					keys[settingID{k.Key, k.New}] = k.New
				}
			case k.New == unset[c.Object][k.Key]:
				delete(keys, id)
			default:
				keys[id] = k.New
			}
		}
	}
	return m
}

// sequence is a list whose order matters.
type sequence []any

// randomFile makes a valid configuration of mappings, lists and words.
func randomFile(r *rand.Rand) map[string]any {
	some := func(m map[string]any, key string, values ...any) {
		if i := r.IntN(2 * len(values)); i < len(values) {
			m[key] = values[i]
		}
	}
	section := func() map[string]any { return map[string]any{} }
	log, reactors, tcp := section(), section(), section()
	some(log, "level", "debug", "info", "warn")
	some(log, "format", "text", "json")
	some(reactors, "cpus", sequence{1, 2}, sequence{2, 1}, sequence{1})
	some(reactors, "spin", "0s", "1ms", "1000us")
	some(tcp, "congestion_control", "", "dctcp", "bbr")
	some(tcp, "data_digest", true, false)
	var listeners, subsystems []any
	for i := range 1 + r.IntN(4) {
		l := map[string]any{"transport": "tcp", "address": "10.0.0.1", "port": i % 3 * 4420}
		if i%3 > 0 { // port 0 is counted, so the order matters
			some(l, "on_unavailable", "wait", "fail")
		}
		listeners = append(listeners, l)
	}
	for i := range 4 {
		if i > 0 && r.IntN(2) == 0 {
			continue
		}
		s := map[string]any{
			"nqn":   fmt.Sprintf("nqn.2026-11.io.nvmf-target:s%d", i),
			"hosts": []any{"nqn.2026-11.io.nvmf-target:h0"},
		}
		for j := range 3 {
			if r.IntN(2) == 0 {
				s["hosts"] = append(s["hosts"].([]any), fmt.Sprintf("nqn.2026-11.io.h:%d", j))
			}
		}
		some(s, "serial", "1", "2")
		some(s, "max_io_queues", 128, 4)
		var namespaces []any
		for j := range 1 + r.IntN(3) {
			n := randomStorage(r, fmt.Sprintf("/disk%d.%d", i, j))
			n["nsid"] = j + 1
			some(n, "read_only", true, false)
			some(n, "eui64", fmt.Sprintf("%016X", 16*i+j+10))
			namespaces = append(namespaces, n)
		}
		s["namespaces"] = namespaces
		subsystems = append(subsystems, s)
	}
	return map[string]any{
		"log": log, "reactors": reactors, "tcp": tcp, "listeners": listeners,
		"subsystems": subsystems,
	}
}

func randomStorage(r *rand.Rand, path string) map[string]any {
	size := []any{"1MiB", "1024KiB", "2MiB"}[r.IntN(3)]
	switch r.IntN(4) {
	case 0:
		return map[string]any{"backend": "ram", "size": size}
	case 1:
		return map[string]any{"backend": "null", "size": size}
	case 2:
		return map[string]any{"backend": "pass", "of": randomStorage(r, path)}
	}
	return map[string]any{
		"backend": "file", "path": path, "size": size, "block_size": 512 << r.IntN(2),
	}
}

// written returns v as text in a random style.
func written(r *rand.Rand, v any) string {
	var parts []string
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		for _, i := range r.Perm(len(keys)) {
			parts = append(parts, keys[i]+": "+written(r, v[keys[i]]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		for _, i := range r.Perm(len(v)) {
			parts = append(parts, written(r, v[i]))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case sequence:
		return strings.ReplaceAll(fmt.Sprint([]any(v)), " ", ", ")
	case string:
		return strconv.Quote(v)
	}
	return fmt.Sprint(v)
}
