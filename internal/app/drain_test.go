package app

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// states returns the states of the listeners, by port ID.
func (l *live) states() string {
	var list []string
	for _, s := range l.s.listeners.States() {
		list = append(list, s.State)
	}
	return strings.Join(list, " ")
}

func (l *live) wantStates(want string) {
	l.t.Helper()
	testutil.Equal(l.t, l.states(), want, "listeners")
}

// discovered returns the ports of the discovery log.
func (l *live) discovered(at int) (ports []uint16) {
	l.t.Helper()
	ctx := testutil.Context(l.t)
	c := testutil.Value(l.connect(nvme.DiscoveryNQN, hostB, at))(l.t)
	_, entries, err := hosttest.Discover(ctx, c)
	testutil.Must(l.t, err)
	for _, e := range entries {
		if e.SUBTYPE == nvme.SubsystemNVM {
			ports = append(ports, e.PORTID)
		}
	}
	c.Close()
	return ports
}

// TestDrain: hosts of a drained listener leave, and only these. No change of the configuration puts
// it into service again, but undrain does, at its former address.
func TestDrain(t *testing.T) {
	two, subsystems := listenAny+", "+listenAny, sub(anyHosts, inRAM)
	l := newLive(t, two, subsystems)
	at := l.s.Addrs()[0]
	leaves := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	stays := testutil.Value(l.connect(testNQN, hostB, 1))(t)
	first := control.ListenerID{Listener: at.AddrPort.String()}
	for range 2 { // it may be repeated
		list, err := l.s.engine.Drain(first, true)
		testutil.MustTrue(t, err == nil && len(list) == 1 && list[0].PortID == 1 &&
			list[0].Address == first.Listener && strings.HasPrefix(list[0].State, "drain"),
			"%+v, %v", list, err)
	}
	l.wantEnded("drained listener", leaves)
	// The host has left before the target has freed everything.
	testutil.Until(t, "the connections end", func() bool { return l.states() != "draining up" })
	drained := func() {
		t.Helper()
		l.wantStates("drained up")
		if ports := l.discovered(0); fmt.Sprint(ports) != "[2]" {
			t.Errorf("the discovery log has ports %v", ports)
		}
		st := l.s.status()
		testutil.True(t, st.Listeners == 1 && st.DrainedListeners == 1, "%+v", st)
	}
	drained()
	ctx := testutil.Context(t)
	o := hostOptions(testNQN)
	testutil.Is(t, testutil.Err(host.Connect(ctx, host.TCP{Addr: at.AddrPort}, o)),
		unix.ECONNREFUSED, "a drained listener accepts")

	changed := strings.Replace(two, "}", ", on_unavailable: fail}", 1)
	l.apply(changed, subsystems)
	drained()
	testutil.Equal(t, stays.Err(), nil, "the host of another listener")
	taken := listen(t, "127.0.0.1:0").AddrPort().Port()
	third := fmt.Sprintf("{transport: tcp, address: 127.0.0.1, port: %d, on_unavailable: fail}",
		taken)
	l.refuse(changed+", "+third, subsystems)
	drained()

	list, err := l.s.engine.Drain(control.ListenerID{Listener: "1"}, false)
	testutil.MustTrue(t, err == nil && len(list) == 1 && list[0].State == "up", "%+v, %v", list,
		err)
	testutil.True(t, l.s.Addrs()[0] == at, "it listens at %v, before at %v", l.s.Addrs()[0], at)
	testutil.Check(t, testutil.Err(l.connect(testNQN, hostA, 0)))
}

// TestDrainWaiting: a listener that waits for its address does not come up while it is drained.
func TestDrainWaiting(t *testing.T) {
	absent := "{transport: tcp, address: 192.0.2.1, port: 4420}"
	l := newLive(t, listenAny+", "+absent, sub(anyHosts, inRAM))
	l.wantStates("up waiting")
	for _, which := range []control.ListenerID{
		{Listener: "192.0.2.1:4420"}, {Listener: "tcp 192.0.2.1:4420"}, {All: true},
	} {
		testutil.Value(l.s.engine.Drain(which, true))(t)
		if !which.All {
			l.wantStates("up drained")
		} else {
			l.wantStates("drained drained")
		}
		testutil.Value(l.s.engine.Drain(control.ListenerID{All: true}, false))(t)
		l.wantStates("up waiting")
	}
	_, err := l.s.engine.Drain(control.ListenerID{Listener: "192.0.2.1:1"}, true)
	var p *control.Problem
	testutil.True(t, errors.As(err, &p) && p.Status == 404 && p.Hint != "", "%v", err)
}

// TestDrainNetwork: a listener is drained together with the addresses that it will have, even if it
// has none yet, until it or one of them is undrained.
func TestDrainNetwork(t *testing.T) {
	port := testutil.FreePort(t)
	l, n := healing(t, listenAny+", "+at("eth0", port))
	l.wantStates("up waiting")
	drain := func(name string, drain bool, want string) {
		t.Helper()
		testutil.Value(l.s.engine.Drain(control.ListenerID{Listener: name, All: name == ""},
			drain))(t)
		l.wantStates(want)
	}
	set := func(want string, list ...string) {
		t.Helper()
		n.Set(list...)
		testutil.Until(t, "listeners are "+want, func() bool { return l.states() == want })
	}
	eth0 := fmt.Sprintf("eth0:%d", port)
	drain(eth0, true, "up drained")
	set("up drained drained", "eth0 127.0.9.1", "eth0 127.0.9.2")
	drain(fmt.Sprintf("127.0.9.1:%d", port), false, "up up drained")
	set("up up drained up", "eth0 127.0.9.1", "eth0 127.0.9.2", "eth0 127.0.9.3")
	set("up waiting")
	set("up drained", "eth0 127.0.9.2")
	drain("tcp "+eth0, false, "up up")
	set("up waiting")
	drain("", true, "drained drained")
	drain("", false, "up waiting")
}
