package listeners

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// fakeListener is a port of an RDMA device that nothing connects to.
type fakeListener struct{ at fabric.Addr }

func (l fakeListener) Addr() fabric.Addr { return l.at }
func (fakeListener) Close() error        { return nil }
func (fakeListener) Stack() fabric.Stack { return fabric.DeviceStack }

// opened returns listeners of a target without transports, which end with the test.
func opened(t *testing.T, n *netiftest.Network, c Config, list ...config.Listener) *Listeners {
	t.Helper()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Network, c.Up = n, func(fabric.Addr) {}
	c.State = testutil.Value(state.Open(""))(t)
	c.Target = target.New(target.Options{Log: c.Log})
	c.Patiently = func(fn func() error) error { return fn() }
	if c.Listen == nil {
		c.Listen = func(at fabric.Addr, _ uint16) (fabric.Listener, error) {
			return fakeListener{at}, nil
		}
	}
	ls := New(c)
	t.Cleanup(func() { testutil.Check(t, errors.Join(ls.Close(), c.Target.Close())) })
	testutil.Must(t, ls.Prepare(list))
	for _, l := range list {
		testutil.Value(ls.Add(l))(t)
	}
	return ls
}

// tcpAt returns a listener on TCP at an address of the machine or the addresses of an interface.
func tcpAt(address string) config.Listener {
	l := config.Listener{Name: "tcp " + address, Transport: nvme.TransportTCP, Port: 4420}
	if ip, err := netip.ParseAddr(address); err == nil {
		l.Address.IP = ip
	} else {
		l.Address.Device = address
	}
	return l
}

// TestTakeBack: this process does not open ports that the next one has. If that has failed, ports
// that cannot be opened again take a second in all, because changes wait meanwhile.
func TestTakeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := []config.Listener{tcpAt("10.0.0.1"), tcpAt("10.0.0.2"), tcpAt("10.0.0.3")}
		opens := 0
		ls := opened(t, &netiftest.Network{}, Config{
			Listen: func(at fabric.Addr, _ uint16) (fabric.Listener, error) {
				if opens++; opens > len(list) {
					return nil, unix.EADDRINUSE
				}
				return fakeListener{at}, nil
			},
		}, list...)
		ls.Freeze(true)
		ls.Lost(1)
		testutil.Value(ls.HandOver())(t)
		ls.look()
		testutil.Equal(t, opens, len(list), "ports opened")
		began := time.Now()
		ls.TakeBack()
		testutil.Equal(t, time.Since(began), takeBackTries*takeBackPause, "time")
		testutil.Equal(t, opens, 2*len(list)+takeBackTries, "ports opened, with failures")
	})
}

// TestUpdatesOfStorm: while addresses change every millisecond, the pauses between two updates
// grow, and afterwards they are short again.
func TestUpdatesOfStorm(t *testing.T) {
	n := &netiftest.Network{}
	synctest.Test(t, func(t *testing.T) {
		ls := opened(t, n, Config{Retry: time.Hour})
		ls.Start()
		reads := n.Reads()
		updates := func(wait time.Duration) int {
			time.Sleep(wait)
			synctest.Wait()
			was := reads
			reads = n.Reads()
			return reads - was
		}
		time.Sleep(2 * handshakePause)
		synctest.Wait()
		testutil.Equal(t, n.Looks(), 2, "looks at handshakes")
		for range 10_000 {
			n.Set("eth0 127.0.9.1")
			time.Sleep(time.Millisecond)
		}
		got := updates(settleMax)
		testutil.True(t, got >= 10 && got <= 12, "%d updates during 10,000 changes", got)
		testutil.True(t, updates(4*settleMax) <= 0, "updates without a change")
		for range 2 {
			n.Set("eth0 127.0.9.2")
			testutil.Equal(t, updates(settleFirst), 1, "updates after a change")
			updates(time.Minute)
		}
	})
}

// TestHandshakes: peers that do not get the answers to their SYNs are refusals, once each while
// that lasts, and few of many at a time.
func TestHandshakes(t *testing.T) {
	n := &netiftest.Network{Unrouted: netip.MustParseAddr("10.0.0.3")}
	n.Set("eth0 127.0.9.1")
	recorder := ratelog.NewRecorder(slog.DiscardHandler)
	iwarp := tcpAt("127.0.9.1")
	iwarp.Name, iwarp.Transport, iwarp.Port = "iwarp", nvme.TransportRDMA, 4421
	device := iwarp
	device.Name, device.Port = "device", 4422
	stacks := map[uint16]fabric.Stack{4421: fabric.SoftIWARPStack, 4422: fabric.DeviceStack}
	ls := opened(t, n, Config{
		Peers: ratelog.New(slog.New(recorder)),
		Listen: func(at fabric.Addr, _ uint16) (fabric.Listener, error) {
			if at.Transport == nvme.TransportTCP {
				return fakeListener{at}, nil
			}
			return rdmaListener{fakeListener{at}, stacks[at.Port()]}, nil
		},
	}, tcpAt("eth0"), iwarp, device)
	open, _ := ls.Addrs()
	testutil.MustEqual(t, len(open), 3, "open ports")
	at := slices.IndexFunc(open, func(a fabric.Addr) bool {
		return a.Transport == nvme.TransportTCP
	})
	local := open[at].AddrPort
	overRDMA := netip.AddrPortFrom(local.Addr(), 4421)
	from := func(remote string, repeated int) netif.Handshake {
		return netif.Handshake{
			Local: local, Remote: netip.MustParseAddrPort(remote), Repeated: repeated,
		}
	}
	elsewhere := from("10.0.0.4:1", answersLost)
	elsewhere.Local = netip.AddrPortFrom(local.Addr(), local.Port()+2)
	lost, unroutable := from("10.0.0.2:1", answersLost), from("10.0.0.3:1", answersLost)

	var reported map[netip.AddrPort]bool
	look := func(list ...netif.Handshake) (lines []string) {
		t.Helper()
		n.Waiting = list
		before := len(recorder.Refusals())
		var err error
		reported, err = ls.reportHandshakes(reported)
		testutil.True(t, err == nil, "%v", err)
		for _, r := range recorder.Refusals() {
			lines = append(lines, fmt.Sprint(r.Message, " ", r.Remote, " ", r.Attributes))
		}
		return lines[:len(lines)-before]
	}
	if got := look(from("10.0.0.2:1", answersLost-1), elsewhere); len(got) > 0 {
		t.Errorf("reported: %q", got)
	}
	got := look(lost, unroutable)
	for i, want := range []string{
		"10.0.0.3:1 [{local " + local.String() + "} {interface no route}",
		"10.0.0.2:1 [{local " + local.String() + "} {interface eth0}",
	} {
		testutil.True(t, len(got) == 2 && strings.HasPrefix(got[i],
			"TCP handshake not completed "+want), "reported: %q, want %s", got, want)
	}
	findings := Findings(n, []doctor.Listener{{Address: local}})
	testutil.True(t, len(findings) == 2 && findings[0].Severity == doctor.Warning &&
		strings.Contains(findings[0].Found, "10.0.0.2:1 at "+local.String()) &&
		strings.Contains(findings[1].Found, "no route"), "findings: %+v", findings)
	got = look(lost, unroutable)
	testutil.True(t, len(got) == 0 && len(reported) == 2, "reported again: %q", got)
	overIWARP := from("10.0.0.5:1", answersLost)
	overIWARP.Local = overRDMA
	elsewhere.Local = netip.AddrPortFrom(local.Addr(), 4422) // of another program
	got = look(overIWARP, elsewhere)
	testutil.True(t, len(got) == 1 && strings.Contains(got[0], overRDMA.String()), "reported: %q",
		got)
	var many []netif.Handshake
	for i := range 3 * mostLogged {
		many = append(many, from(fmt.Sprintf("10.0.1.%d:1", i), answersLost))
	}
	for range 3 {
		if got := look(many...); len(got) != mostLogged {
			t.Errorf("%d of many are reported, want %d", len(got), mostLogged)
		}
	}
	got = look(many...)
	testutil.True(t, len(got) == 0, "reported again: %q", got)
	look()
	testutil.True(t, len(reported) == 0, "%d are remembered after their end", len(reported))
}

// TestLostAtOnce: a listener that loses its device while it is being opened is opened again.
func TestLostAtOnce(t *testing.T) {
	n := &netiftest.Network{}
	n.Set("eth0 127.0.9.1")
	var ls *Listeners
	opens := make(chan bool, 8)
	ls = opened(t, n, Config{
		Retry: time.Hour, Settle: time.Millisecond,
		Listen: func(at fabric.Addr, id uint16) (fabric.Listener, error) {
			if len(opens) == 0 {
				ls.Lost(id)
			}
			opens <- true
			return fakeListener{at}, nil
		},
	})
	ls.Start()
	testutil.Value(ls.Add(tcpAt("eth0")))(t)
	for range 2 {
		testutil.Receive(t, "the port is opened", opens)
	}
}

// closingListener is a port with a function that Close calls.
type closingListener struct {
	fakeListener
	close func()
}

func (l closingListener) Close() error { l.close(); return nil }

// TestTLSOfClosingPort: a port is not open for connections without TLS while it is being closed.
func TestTLSOfClosingPort(t *testing.T) {
	n := &netiftest.Network{}
	n.Set("eth0 127.0.9.1")
	var ls *Listeners
	tls := fabric.TLSOff
	l := tcpAt("127.0.9.1")
	l.TLS = fabric.TLSRequired
	ls = opened(t, n, Config{Listen: func(at fabric.Addr, id uint16) (fabric.Listener, error) {
		return closingListener{fakeListener{at}, func() { tls = ls.TLSOf(id) }}, nil
	}}, l)
	testutil.Must(t, ls.Prepare(nil))
	testutil.Value(ls.Remove(l.Name))(t)
	testutil.Equal(t, tls, fabric.TLSRequired, "the policy at the end")
}

// TestUnreadableAddresses: if the addresses cannot be read, ports stay, and one line reports it.
func TestUnreadableAddresses(t *testing.T) {
	var out testutil.Log
	n := &netiftest.Network{Err: errors.New("not permitted")}
	ls := opened(t, n, Config{Log: out.Logger()}, tcpAt("127.0.0.1"))
	for range 10 {
		ls.look()
		testutil.Equal(t, len(ls.States()), 1, "ports")
		testutil.Equal(t, ls.States()[0].State, "up", "the port is")
	}
	testutil.Equal(t, strings.Count(out.String(), "not permitted"), 1, "lines")
}

func TestAnnouncedOn(t *testing.T) {
	n := &netiftest.Network{}
	n.Set("lo ::1", "eth0 192.0.2.1", "eth0 2001:db8::1", "eth0 2001:db8::2", "eth0 fe80::1%eth0",
		"eth1 fe80::1%eth1", "eth2 2001:db8::9 down")
	m := testutil.Value(n.Read())(t)
	for at, want := range map[string]string{
		"[::]:1":              "eth0 192.0.2.1:1, eth0 [2001:db8::1]:1",
		"0.0.0.0:1":           "eth0 192.0.2.1:1",
		"[2001:db8::2]:1":     "eth0 [2001:db8::2]:1",
		"[fe80::1%eth1]:1":    "eth1 [fe80::1]:1",
		"[::ffff:c000:201]:1": "eth0 192.0.2.1:1",
		"[2001:db8::9]:1":     "",
	} {
		up := []fabric.Addr{{
			Transport: nvme.TransportTCP, AddrPort: netip.MustParseAddrPort(at),
		}}
		var got []string
		for name, services := range announcedOn(&config.Discovery{}, up, &m) {
			for _, s := range services {
				got = append(got, name+" "+s.Addr.String())
			}
		}
		testutil.Equal(t, strings.Join(got, ", "), want, "%s", at)
	}
}

// TestSocketsInherited: other descriptors of the service manager are closed.
func TestSocketsInherited(t *testing.T) {
	null := testutil.Value(os.Open(os.DevNull))(t)
	s := NewSockets(slog.Default(), []*os.File{null}, nil)
	testutil.True(t, len(s.before) == 0 && null.Close() != nil,
		"a file was taken for a socket, or is still open")
}

// TestKeptByZone: a socket that was kept under the name of its interface is there for a listener
// with the number.
func TestKeptByZone(t *testing.T) {
	const name = "tcp-[fe80__1%lo]_4420"
	s := &Sockets{
		log: slog.New(slog.DiscardHandler), before: map[string]*os.File{name: nil},
		notify: func(string, ...int) error { return nil },
	}
	ls := opened(t, &netiftest.Network{}, Config{Sockets: s}, tcpAt("fe80::1%1"))
	testutil.Equal(t, len(s.before), 1, "kept sockets")
	testutil.Equal(t, ls.States()[0].Address, "[fe80::1%lo]:4420", "address")
}

// rdmaListener is a port of an RDMA stack.
type rdmaListener struct {
	fakeListener
	stack fabric.Stack
}

func (l rdmaListener) Stack() fabric.Stack { return l.stack }

// TestAwaitsDevice: a port waits for the device that has served it, and for that of its interface.
func TestAwaitsDevice(t *testing.T) {
	n := &netiftest.Network{RDMA: map[string][]string{"rxe0": {"eth1"}}}
	n.Set("eth0 10.0.0.1", "eth1 10.0.1.1")
	stacks := map[string]fabric.Stack{}
	open := func(at fabric.Addr, _ uint16) (fabric.Listener, error) {
		return rdmaListener{fakeListener{at}, stacks[at.Addr().String()]}, nil
	}
	rdmaAt := func(address string) config.Listener {
		l := tcpAt(address)
		l.Name, l.Transport = "rdma "+address, nvme.TransportRDMA
		return l
	}
	stacks["10.0.0.1"], stacks["10.0.1.1"] = fabric.SoftStack, fabric.SoftStack
	ls := opened(t, n, Config{Listen: open}, rdmaAt("10.0.0.1"), rdmaAt("10.0.1.1"))
	awaits := func() (list []bool) {
		for _, p := range ls.States() {
			testutil.Equal(t, p.Stack, stacks[strings.Split(p.Address, ":")[0]].String(), "stack")
			list = append(list, ls.AwaitsDevice(p.PortID))
		}
		return list
	}
	testutil.Equal(t, fmt.Sprint(awaits()), "[false true]", "served without")
	for _, stack := range []fabric.Stack{fabric.DeviceStack, fabric.SoftStack} {
		stacks["10.0.0.1"] = stack
		for _, p := range ls.ports {
			testutil.Must(t, ls.listen(p))
		}
		want := fmt.Sprint([]bool{stack == fabric.DeviceStack, true})
		testutil.Equal(t, fmt.Sprint(awaits()), want, "served by %v", stack)
		serve := slices.Compact([]string{stack.String(), "soft"})
		testutil.EqualSlices(t, ls.RDMAStacks(), serve, "stacks")
	}
}

// TestAddresses: a listener has the addresses that its network, interface or device has.
func TestAddresses(t *testing.T) {
	m := netif.State{
		Addresses: netiftest.Addresses("lo 127.0.0.1", "lo ::1", "eth0 10.0.0.1", "eth0 fd00::1",
			"eth0 fe80::1%eth0", "eth1 10.0.1.1", "eth1 10.0.0.1", "eth2 10.0.0.3 down"),
		RDMA: map[string][]string{"mlx5_0": {"eth0", "eth1"}, "eth9": {"eth1"}},
	}
	for _, row := range testutil.Rows(t, "addresses") {
		var tc struct{ listener, want string }
		row.Scan(&tc.listener, &tc.want)
		c := testutil.Value(config.Parse("test.yaml", []byte("listeners: [{transport: "+tc.listener+
			"}]\nsubsystems:\n  - {nqn: nqn.2026-11.io.nvmf-target:test, allow_any_host: true, "+
			"namespaces: [{nsid: 1, backend: ram, size: 1MiB}]}\n"), nil, volumes.Backends))(t)
		addrs, err := Addresses(c.Listeners[0], &m)
		var ips []netip.Addr
		for _, at := range addrs {
			ips = append(ips, at.Addr())
		}
		if got := fmt.Sprint(ips); err == nil && got != tc.want ||
			err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %s, %v", tc.listener, got, err)
		}
	}
}
