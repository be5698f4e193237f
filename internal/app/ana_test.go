package app

import (
	"fmt"
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

// TestANATransition: a transition ends after the time that hosts know.
func TestANATransition(t *testing.T) {
	for limit, ends := range map[time.Duration]bool{time.Hour: false, time.Millisecond: true} {
		l := newLive(t, listenAny, sub(anyHosts, inRAM), Options{ANATransition: limit})
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
