package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestAffected: a change disconnects exactly the hosts that plan has named.
func TestAffected(t *testing.T) {
	const (
		one  = "{name: one, transport: tcp, address: 127.0.0.1, port: 0}"
		both = one + ", {name: two, transport: tcp, address: 127.0.0.1, port: 0}"
		keys = "hosts: [" + hostA + ", " + hostB + "]"
		a, b = hostA + " ", hostB + " "
	)
	file := onFile(1, "one")
	for _, row := range []struct {
		name, listeners, subsystems string
		want                        []string // host and effect
		ended                       [2]bool
	}{
		{"nothing", both, sub(keys, file, inRAM2), nil, [2]bool{}},
		{
			"listener", one, sub(keys, file, inRAM2),
			[]string{b + control.Disconnects},
			[2]bool{false, true},
		},
		{
			"subsystem", both, strings.Replace(sub(keys, inRAM), testNQN, testNQN+"-2", 1),
			[]string{a + control.Disconnects, b + control.Disconnects},
			[2]bool{true, true},
		},
		{
			"host of a subsystem", both, sub("hosts: ["+hostB+"]", file, inRAM2),
			[]string{a + control.Disconnects},
			[2]bool{true, false},
		},
		{
			"networks of a host", both, sub(keys, file, inRAM2) +
				"hosts: [{nqn: " + hostB + ", networks: [10.0.0.0/8]}]\n",
			[]string{b + control.Disconnects},
			[2]bool{false, true},
		},
		{
			"namespace", both, sub(keys, inRAM2),
			[]string{a + control.Loses, b + control.Loses},
			[2]bool{},
		},
		{
			"host of a namespace", both,
			sub(keys, file, "{nsid: 2, backend: ram, size: 1MiB, hosts: ["+hostA+"]}"),
			[]string{b + control.Loses},
			[2]bool{},
		},
		{
			"storage", both, sub(keys, onFile(1, "two"), inRAM2),
			[]string{a + control.Waits, b + control.Waits},
			[2]bool{},
		},
		{
			"listeners of a subsystem", both, sub(keys+", listeners: [one]", file, inRAM2),
			[]string{b + control.Disconnects},
			[2]bool{false, true},
		},
		{"limits", both, sub(keys+", limits: {iops: 1000}", file, inRAM2), nil, [2]bool{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newLive(t, both, sub(keys, file, inRAM2))
			l.file("two")
			first := testutil.Value(l.connect(testNQN, hostA, 0))(t)
			second := testutil.Value(l.connect(testNQN, hostB, 1))(t)
			next := l.parse(row.listeners, row.subsystems)
			var got []string
			for _, change := range l.plan(next).Changes {
				for _, h := range change.Affected {
					got = append(got, h.Host+" "+h.Effect)
					testutil.True(t, h.Controllers == 1, "%+v, want one controller", h)
				}
			}
			testutil.True(t, fmt.Sprint(got) == fmt.Sprint(row.want), "got  %q\nwant %q", got,
				row.want)
			testutil.Value(l.s.Apply(next))(t)
			ctx := testutil.Context(t)
			for i, c := range []*host.Controller{first, second} {
				if row.ended[i] {
					l.wantEnded(row.name, c)
				} else if _, err := c.IdentifyController(ctx); err != nil {
					t.Errorf("host %d: %v", i, err)
				}
			}
		})
	}
}

// TestAffectedByKeys: a host that loses a key that it needs is affected, and others are not.
func TestAffectedByKeys(t *testing.T) {
	const (
		key  = "{nqn: %s, dhchap_key: \"" + testSecret + "\"}"
		auth = ", security: auth"
	)
	keys := func(hosts ...string) string {
		return "hosts: [" + strings.Join(hosts, ", ") + "]\n"
	}
	keyA, keyB := fmt.Sprintf(key, hostA), fmt.Sprintf(key, hostB)
	both, any := "hosts: ["+hostA+", "+hostB+"]", "allow_any_host: true"
	for _, row := range []struct{ name, before, after, want string }{
		{"the key", sub(any+auth, inRAM2) + keys(keyA), sub(any+auth, inRAM2), "disconnects"},
		{
			"not the key", sub(any+auth, inRAM2) + keys(keyA), sub(any+auth, inRAM2) +
				keys("{nqn: "+hostA+", dhchap_key: \""+testSecret+"\", networks: [127.0.0.0/8]}"),
			"",
		},
		{"not needed", sub(any, inRAM2) + keys(keyA), sub(any, inRAM2), ""},
		{
			"no longer needed", sub(any+auth, inRAM2) + keys(keyA), sub(any, inRAM2), "",
		},
		{
			"needed from now on", sub(any, inRAM2) + keys(keyA), sub(any+auth, inRAM2),
			"disconnects",
		},
		{
			"of another", sub(both+auth, inRAM2) + keys(keyA, keyB),
			sub("hosts: ["+hostA+"]"+auth, inRAM2) + keys(keyA), "",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newLive(t, listenAny, row.before)
			c := testutil.Value(l.connectKey(testNQN, hostA))(t)
			next := l.parse(listenAny, row.after)
			got := ""
			for _, change := range l.plan(next).Changes {
				for _, h := range change.Affected {
					got = h.Effect
				}
			}
			testutil.Equal(t, got, row.want, "said")
			testutil.Value(l.s.Apply(next))(t)
			if row.want != "" {
				l.wantEnded(row.name, c)
				return
			}
			ctx := testutil.Context(t)
			testutil.Check(t, testutil.Err(c.IdentifyController(ctx)))
		})
	}
}

// TestAffectedByNewListener: a new listener at an address takes it from a listener that has it as
// part of a network, and with it the hosts of subsystems that name only the latter.
func TestAffectedByNewListener(t *testing.T) {
	port := testutil.FreePort(t)
	network := fmt.Sprintf("{name: net, transport: tcp, address: 127.0.0.0/8, port: %d}", port)
	single := fmt.Sprintf(", {transport: tcp, address: 127.0.0.1, port: %d}", port)
	of := sub("allow_any_host: true, listeners: [net]", inRAM2)
	l := newLive(t, network, of)
	c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	next := l.parse(network+single, of)
	got := l.plan(next).Changes
	testutil.True(t, len(got) == 1 && len(got[0].Affected) == 1 &&
		got[0].Affected[0].Effect == control.Disconnects, "%+v", got)
	testutil.Value(l.s.Apply(next))(t)
	l.wantEnded("a new listener", c)
}

const inRAM2 = "{nsid: 2, backend: ram, size: 1MiB}"

// plan returns the plan of a reload with another configuration.
func (l *live) plan(next *config.Config) control.Plan {
	l.t.Helper()
	l.s.engine.Load = func(...config.Option) (*config.Config, error) { return next, nil }
	return testutil.Value(l.s.engine.PlanOfReload(l.t.Context()))(l.t)
}
