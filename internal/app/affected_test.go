package app

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// The hosts that a change is said to disconnect are those that it disconnects.
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
		{"limits", both, sub(keys+", limits: {iops: 1000}", file, inRAM2), nil, [2]bool{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newLive(t, both, sub(keys, file, inRAM2))
			l.file("two")
			first, err := l.connect(testNQN, hostA, 0)
			if err != nil {
				t.Fatal(err)
			}
			second, err := l.connect(testNQN, hostB, 1)
			if err != nil {
				t.Fatal(err)
			}
			next := l.parse(row.listeners, row.subsystems)
			connections := l.s.connected()
			changes := config.Diff(l.s.settings, next.Settings())
			var got []string
			for _, list := range l.s.affected(next, changes, connections) {
				for _, h := range list {
					got = append(got, h.Host+" "+h.Effect)
					if h.Controllers != 1 {
						t.Errorf("%+v, want one controller", h)
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(row.want) {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
			if _, err := l.s.Apply(next); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			defer cancel()
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

const inRAM2 = "{nsid: 2, backend: ram, size: 1MiB}"
