package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

func TestAnnouncement(t *testing.T) {
	addr := func(tr nvme.TransportType, s string) fabric.Addr {
		return fabric.Addr{Transport: tr, AddrPort: netip.MustParseAddrPort(s)}
	}
	subsystem := func(nqn string, r subsystems.Security) (s config.Subsystem) {
		s.NQN, s.Security = nqn, r
		return s
	}
	parse := func(storage string) []*volumes.Namespace {
		return volumes.All(testutil.Value(Parse("test.yaml", []byte(`
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:test
    allow_any_host: true
    namespaces: [{nsid: 1, `+storage+`, size: 16MiB}]
`), nil))(t))
	}
	a := announcement{
		version: "v1.2.3",
		subsystems: []config.Subsystem{
			subsystem("nqn.2026-11.io.nvmf-target:disk0", 0),
			subsystem("nqn.2026-11.io.nvmf-target:it's $HOME", 0),
			subsystem("nqn.2026-11.io.nvmf-target:key", subsystems.SecurityAuth),
			subsystem("nqn.2026-11.io.nvmf-target:tls", subsystems.SecurityTLS),
		},
		namespaces: slices.Repeat(parse("backend: ram"), 34),
		up: []fabric.Addr{
			addr(nvme.TransportTCP, "0.0.0.0:4420"),
			addr(nvme.TransportTCP, "192.0.2.1:4422"),
			addr(nvme.TransportRDMA, "[2001:db8::1]:4421"),
		},
		encrypted: map[fabric.Addr]bool{addr(nvme.TransportTCP, "192.0.2.1:4422"): true},
		waiting:   []string{"rdma 10.0.0.1:4420"},
		pending:   parse("backend: file, path: /mnt/disk"),
	}
	got := a.text(func(fabric.Addr) []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7")}
	})
	testutil.Golden(t, "testdata/announcement.golden", got)
}

// requested is a communication manager that has a request already.
type requested struct{ verbs.CM }

func (requested) NewCM() (verbs.CM, error)             { return requested{}, nil }
func (requested) Devices() ([]verbs.DeviceAttr, error) { return nil, nil }
func (requested) Next() (verbs.Event, error)           { return verbs.Event{}, nil }
func (requested) Close() error                         { return nil }
func (requested) Listen(netip.AddrPort, int, uint8) (verbs.ID, error) {
	return struct{ verbs.ID }{}, nil
}

// TestEarlyRequest: a request of a host waits until all listeners have their users.
func TestEarlyRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &early{Provider: requested{}}
		testutil.Must(t, e.open(make([]listeners.Handed, 1)))
		cm := testutil.Value(e.NewCM())(t)
		events := make(chan error, 1)
		go func() { events <- testutil.Err(cm.Next()) }()
		synctest.Wait()
		testutil.Equal(t, len(events), 0, "events before")
		testutil.Value(cm.Listen(netip.AddrPort{}, 1, 0))(t)
		e.settle()
		testutil.Check(t, <-events)
	})
}

// TestReachable: a wildcard is announced with addresses of this machine.
func TestReachable(t *testing.T) {
	list := reachable(fabric.Addr{
		Transport: nvme.TransportTCP,
		AddrPort:  netip.MustParseAddrPort("0.0.0.0:1"),
	})
	testutil.MustTrue(t, len(list) != 0, "no address")
	for _, ip := range list {
		l, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
		if err != nil {
			t.Errorf("%v: %v", ip, err)
			continue
		}
		l.Close()
	}
}

func TestVersion(t *testing.T) {
	build := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	revision := debug.BuildSetting{
		Key:   "vcs.revision",
		Value: "0123456789abcdef0123456789abcdef01234567",
	}
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	for _, test := range []struct {
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		{"v1.2.3", build("v1.2.2"), "v1.2.3"},
		{"", build("v1.2.2", revision), "v1.2.2"},
		{"", build("(devel)", revision), "0123456789ab"},
		{"", build("", revision, modified), "0123456789ab-dirty"},
		{"", build("(devel)", modified), "devel"},
		{"", nil, "devel"},
	} {
		testutil.Equal(t, versionOf(test.linked, test.info), test.want,
			"linked %q, built from %+v", test.linked, test.info)
	}
}

// TestExpiringKeys: there are warnings of keys for 30 days before they expire and afterwards. While
// the target runs, they come once a day and when keys expire.
func TestExpiringKeys(t *testing.T) {
	t.Parallel()
	key := testutil.Value(auth.NewKey(32, auth.NoHash))(t)
	start := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &config.Config{Hosts: []config.Host{{}, {NQN: "h"}}}
	c.Hosts[1].Key, c.Hosts[1].Until = key, start.Add(40*24*time.Hour)
	log := new(testutil.Log)
	w := keyWatch{start, start}
	warnings := 0
	for day := range 45 {
		for minute := 0; minute < 24*60; minute += 10 {
			now := start.Add(time.Duration(day)*24*time.Hour + time.Duration(minute)*time.Minute)
			w.check(c, log.Logger(), now)
			want, before := 0, warnings
			warnings = strings.Count(log.String(), "hosts[1].keys_until: the keys of the host")
			if day > 10 && minute == 0 {
				want = 1
			}
			testutil.MustEqual(t, warnings-before, want, "day %d, minute %d: lines", day, minute)
		}
	}
	testutil.Equal(t, strings.Count(log.String(), "cannot connect any more then"), 29,
		"warnings before")
	testutil.True(t, strings.Contains(log.String(), "expired on"),
		"nobody is told that they have expired")
	c.Hosts[1].Until = start.Add(45*24*time.Hour + 5*time.Minute)
	before := strings.Count(log.String(), "expired on")
	for minute := range 10 {
		w.check(c, log.Logger(), start.Add(45*24*time.Hour+time.Duration(minute)*time.Minute))
	}
	testutil.Equal(t, strings.Count(log.String(), "expired on")-before, 1, "lines when keys expire")
}

// TestEndingConnection: the counters of a connection are not counted again after the kernel has
// forgotten it, and a discovery controller is not a path.
func TestEndingConnection(t *testing.T) {
	var totals hostTotals
	c := observed.Connection{
		Host: "a", QID: 1, Commands: 1000, LinkKnown: true, Retransmits: 3,
	}
	discovery := observed.Connection{
		Host: "a", Discovery: true, Remote: netip.MustParseAddrPort("127.0.0.1:1"),
	}
	look := func() metrics.Host {
		hosts := map[string]*metrics.Host{"": {}, "a": {}}
		totals.update([]observed.Connection{c, discovery}, hosts)
		return *hosts["a"]
	}
	first := look()
	c.Commands, c.LinkKnown, c.Retransmits = 1001, false, 0
	last := look()
	testutil.True(t, first.Commands == 1000 && last.Commands == 1001 && last.Retransmits == 3,
		"%+v, then %+v", first, last)
	testutil.Equal(t, last.Controllers, 0, "paths")
}

// TestPauses: a start waits for a second in total, and not after the target was asked to end.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pause, n := pauses(ctx), 0
		for pause() {
			n++
		}
		testutil.True(t, n == int(patience/patiencePause) && !pause(), "%d pauses", n)
		pause = pauses(ctx)
		cancel()
		synctest.Wait()
		for n = 0; pause(); n++ {
			testutil.MustTrue(t, n <= 100, "it waits although the target ends")
		}
	})
}

// TestInUse: the errors for which a start waits, and others.
func TestInUse(t *testing.T) {
	busy, warning := config.Problem{InUse: true}, config.Problem{Warning: true}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{errors.New("a file has the wrong size"), false},
		{fmt.Errorf("a: %w", unix.EADDRINUSE), true},
		{fmt.Errorf("a: %w", control.ErrInUse), true},
		{config.Problems{busy, warning}, true},
		{config.Problems{busy, {What: "wrong"}}, false},
	} {
		testutil.Equal(t, inUse(tc.err), tc.want, "%v", tc.err)
	}
}

// TestManyHangups: several SIGHUPs that come before a reload cause one.
func TestManyHangups(t *testing.T) {
	hangups, end := catchHangups()
	defer end()
	seen := make(chan os.Signal, 16)
	signal.Notify(seen, syscall.SIGHUP)
	defer signal.Stop(seen)
	for range 10 {
		testutil.Must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
		<-seen
	}
	testutil.Receive(t, "SIGHUP", hangups)
	select {
	case <-hangups:
		t.Error("another one waits")
	default:
	}
}

// TestDrainBeforeStart: a group that is given away before it has started is not taken. Its
// namespaces do not count as waiting if this gateway could not take it.
func TestDrainBeforeStart(t *testing.T) {
	g := newGroups(&config.Group{Pool: "p", ANAGroups: []uint32{1, 2}})
	g.drain(1, true)
	waits := func(id uint32, readOnly bool) bool {
		var n config.Namespace
		n.ANAGroup, n.ReadOnly = id, readOnly
		return g.waits(&n)
	}
	testutil.True(t, waits(1, false) && waits(1, true) && !waits(3, false), "which ones wait")
	for id := range g.gates {
		one := group.Start(group.Default("a", "a", time.Second), func() (group.Engine, error) {
			return nil, errors.New("no cluster")
		}, nil, slog.New(slog.DiscardHandler))
		defer one.Stop(testutil.Context(t))
		g.add(id, one)
		testutil.Equal(t, one.Status().Drained, id == 1, "group %d is given away", id)
		testutil.Until(t, "it cannot take the group", func() bool { return !waits(id, false) })
	}
	list := g.states()
	testutil.True(t, len(list) == 2 && list[1].Pool == "p" && list[1].ANAGroup == 2, "%+v", list)
}

// TestFacts: a target tells other gateways of the settings that hosts of a group depend on, and not
// of others.
func TestFacts(t *testing.T) {
	c := testutil.Value(Parse("test.yaml", []byte(`
listeners:
  - {transport: tcp, address: 10.0.0.1}
  - {transport: tcp, address: 0.0.0.0, port: 4421}
  - {transport: tcp, address: 127.0.0.1}
group: {name: a, pool: nvme, ana_groups: [2], lease: 4s}
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:a
    hosts: [nqn.2026-11.x:b, nqn.2026-11.x:a]
    serial: s
    cntlid_max: 100
    namespaces:
      - {nsid: 1, backend: rbd, image: nvme/a, ana_group: 2, block_size: 4096,
         hosts: [nqn.2026-11.x:b, nqn.2026-11.x:a]}
      - {nsid: 2, backend: ram, size: 1MiB}
  - nqn: nqn.2026-11.io.nvmf-target:b
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 1MiB}]
`), nil))(t)
	s := &Server{opts: Options{Version: "1"}, atStart: c}
	const nqn = "nqn.2026-11.io.nvmf-target:a"
	got := s.facts(c, 2)
	names := strings.Join(slices.Sorted(maps.Keys(got.Same)), " ")
	testutil.Equal(t, names, "balance_after lease namespace 1 of "+nqn+" subsystem "+nqn+
		" version", "")
	image, sub := got.Same["namespace 1 of "+nqn], got.Same["subsystem "+nqn]
	for text, prefix := range map[string]string{
		image: "image nvme/a, read_only false, block_size 4096, uuid ", sub: "serial s, model ",
	} {
		testutil.True(t, strings.HasPrefix(text, prefix) && strings.HasSuffix(text,
			`, hosts ["nqn.2026-11.x:a" "nqn.2026-11.x:b"]`), "%s", text)
	}
	testutil.Equal(t, fmt.Sprint(got.Ranges, got.Own), "map[controller IDs of "+nqn+":[1 100]] "+
		"[listener tcp 10.0.0.1:4420]", "")
}

// TestHostsOf: gateways with the same hosts of a subsystem have the same hash of them. The order
// and the number of their connections do not count.
func TestHostsOf(t *testing.T) {
	of := func(hosts string) string {
		list := []observed.Host{{Subsystem: "b", NQN: hosts}}
		for _, nqn := range strings.Fields(hosts) {
			list = append(list, observed.Host{Subsystem: "a", NQN: nqn})
		}
		return hostsOf(list)["a"]
	}
	all := of("x y")
	testutil.True(t, len(all) == 32 && all == of("y x y") && all != of("x") && all != of("xy"),
		"%q", all)
	testutil.Equal(t, of(""), "", "nobody")
}

// TestRemote: a port of another gateway is listed if it is valid, for the listener of its name.
func TestRemote(t *testing.T) {
	names := map[string]string{"": "another", "front": "front"}
	for _, tc := range []struct {
		p    group.Port
		ok   bool
		want string
	}{
		{group.Port{Transport: "tcp", TLS: "required", Label: "front"}, true, "required front"},
		{group.Port{Transport: "rdma", TLS: "x"}, true, "off "},
		{group.Port{Transport: "fc"}, false, "off "},
	} {
		for addr, valid := range map[string]bool{
			"10.0.0.2:4420": true, "[fd00::1]:1": true, "0.0.0.0:4420": false, "10.0.0.2:0": false,
			"[fe80::1%a]:4420": false, "224.0.0.1:4420": false,
		} {
			tc.p.Addr = netip.MustParseAddrPort(addr)
			r, ok := remote(&tc.p, names)
			testutil.Equal(t, ok, tc.ok && valid, "%+v", tc.p)
			testutil.Equal(t, fmt.Sprint(r.TLS, " ", r.Listener), tc.want, "%+v", tc.p)
		}
	}
	r, ok := remote(&group.Port{Transport: "tcp"}, names)
	testutil.True(t, !ok, "a port without an address: %+v", r)
}
