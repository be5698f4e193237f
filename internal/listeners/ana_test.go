package listeners

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestSharedANA: a group that gateways share has the state that they agree on, at all listeners. By
// hand it is only given away.
func TestSharedANA(t *testing.T) {
	var drained []string
	ls := opened(t, &netiftest.Network{}, Config{DrainGroup: func(group uint32, away bool) {
		drained = append(drained, fmt.Sprint(group, away))
	}}, tcpAt("10.0.0.1"), tcpAt("10.0.0.2"))
	states := func(want string) {
		t.Helper()
		list := ls.ANA()
		testutil.Equal(t, len(list), 2, "states")
		for _, s := range list {
			testutil.Equal(t, s.State, want, "%s", s.Listener)
		}
	}
	ls.ShareANA(2, nvme.ANAStateInaccessible)
	states("inaccessible")
	ls.ShareANA(2, nvme.ANAStateOptimized)
	states("optimized")
	for _, set := range []control.ANASet{
		{Group: 2, State: "optimized"},
		{Group: 2, State: "change"},
		{Group: 2, State: "inaccessible", Listener: "tcp 10.0.0.1"},
	} {
		testutil.Fails(t, testutil.Err(ls.SetANA(set)), "shared with other gateways", "%+v", set)
	}
	for _, state := range []string{"inaccessible", "configured"} {
		testutil.Value(ls.SetANA(control.ANASet{Group: 2, State: state}))(t)
	}
	testutil.EqualSlices(t, drained, []string{"2 true", "2 false"}, "given away")
	states("optimized")
}
