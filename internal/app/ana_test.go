package app

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// ana returns the state of the only group of a subsystem as seen by a host.
func (l *live) ana(c *host.Controller) string {
	l.t.Helper()
	ctx := testutil.Context(l.t)
	b := testutil.Value(hosttest.GetLog(ctx, c, nvme.LogANA, nvme.NSIDAll, 0, 1024, 0, false))(l.t)
	_, groups, err := targettest.ParseANALog(b)
	testutil.MustTrue(l.t, err == nil && len(groups) == 1, "%+v %v", groups, err)
	return fmt.Sprintf("%d %v", groups[0].AGID, groups[0].ANAS)
}

// TestANA: states change with the configuration and by hand. No change of the configuration changes
// states set by hand, and nothing is disconnected.
func TestANA(t *testing.T) {
	listeners := func(states string) string {
		return strings.Replace(listenAny, "}", ", ana_states: "+states+"}", 1) + ", " + listenAny
	}
	subsystems := sub(anyHosts, inRAM)
	l := newLive(t, listeners("{1: non-optimized}"), subsystems)
	var hosts []*host.Controller
	for i := range 2 {
		c := testutil.Value(l.connect(testNQN, hostA, i))(t)
		hosts = append(hosts, c)
	}
	want := func(what string, states ...string) {
		t.Helper()
		for i, c := range hosts {
			testutil.Equal(t, l.ana(c), states[i], "%s: port %d", what, i+1)
			testutil.Equal(t, c.Err(), nil, "%s", what)
		}
	}
	set := func(state, listener string) []control.ANA {
		t.Helper()
		list := testutil.Value(
			l.s.listeners.SetANA(control.ANASet{Group: 1, State: state, Listener: listener}))(t)
		return list
	}
	want("at the start", "1 non-optimized", "1 optimized")
	l.apply(listeners("{1: inaccessible, 2: non-optimized}"), subsystems)
	want("a reload", "1 inaccessible", "1 optimized")

	set("optimized", "")
	want("all by hand", "1 optimized", "1 optimized")
	list := set("non-optimized", "tcp 127.0.0.1:0 #2")
	testutil.True(t, len(list) == 4 && list[1].State == "non-optimized" &&
		list[1].Configured == "optimized" && list[0].Configured == "inaccessible" &&
		len(list[0].Namespaces) == 1 && list[2].Group == 2 && list[2].State == "non-optimized" &&
		len(list[2].Namespaces) == 0, "%+v", list)
	want("one by hand", "1 optimized", "1 non-optimized")
	l.apply(listeners("{}"), subsystems)
	want("another reload", "1 optimized", "1 non-optimized")
	set("configured", "")
	want("as configured", "1 optimized", "1 optimized")
	grouped := strings.Replace(subsystems, "backend: ram", "ana_group: 3, backend: ram", 1)
	l.apply(listeners("{3: non-optimized}"), grouped)
	want("another group", "3 non-optimized", "3 optimized")

	for _, bad := range []control.ANASet{
		{Group: 0, State: "optimized"},
		{Group: 129, State: "optimized"},
		{Group: 1, State: "good"},
		{Group: 1, State: "optimized", Listener: "10.0.0.1:1"},
	} {
		_, err := l.s.listeners.SetANA(bad)
		testutil.True(t, err != nil && err.(*control.Problem).Hint != "", "%+v: %v", bad, err)
	}
}

// TestANAWhileApplying: a change of the configuration that takes long delays no failover.
func TestANAWhileApplying(t *testing.T) {
	l := newLive(t, listenAny, sub(anyHosts, inRAM))
	defer l.s.engine.Hold()()
	done := make(chan error, 1)
	go func() {
		_, err := l.s.listeners.SetANA(control.ANASet{Group: 1, State: "inaccessible"})
		done <- err
	}()
	testutil.Check(t, testutil.Receive(t, "a state is set during the change", done))
}

// TestANAOfRemovedListener: a state set by hand can be taken back while its listener is missing.
func TestANAOfRemovedListener(t *testing.T) {
	both, subsystems := listenAny+", "+listenAny, sub(anyHosts, inRAM)
	l := newLive(t, both, subsystems)
	set := func(state, listener string) {
		t.Helper()
		testutil.Value(l.s.listeners.SetANA(control.ANASet{
			Group: 1, State: state, Listener: listener,
		}))(t)
	}
	set("inaccessible", "tcp 127.0.0.1:0 #2")
	l.apply(listenAny, subsystems)
	set("configured", "")
	l.apply(both, subsystems)
	list := l.s.listeners.ANA()
	testutil.True(t, len(list) == 2 && list[1].State == "optimized", "%+v", list)
}

// TestANATransition: a transition ends after the time that hosts know.
func TestANATransition(t *testing.T) {
	for limit, ends := range map[time.Duration]bool{time.Hour: false, time.Millisecond: true} {
		l := &live{t: t, dir: t.TempDir()}
		l.s = started(t, Options{
			Config: l.parse(listenAny, sub(anyHosts, inRAM)), ANATransition: limit,
		})
		c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
		set := func(state string) {
			t.Helper()
			testutil.Value(l.s.listeners.SetANA(control.ANASet{Group: 1, State: state}))(t)
		}
		set("change")
		if !ends {
			testutil.Equal(t, l.ana(c), "1 change", "the state")
		} else {
			testutil.Until(t, "the transition ends",
				func() bool { return l.ana(c) == "1 inaccessible" })
		}
		set("configured")
		testutil.Equal(t, l.ana(c), "1 optimized", "the state")
	}
}
