package app

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestListenerMoves: a port that moves from one listener to another in the same change stays open,
// with its connections, even if the change fails.
func TestListenerMoves(t *testing.T) {
	port := testutil.FreePort(t)
	network, one, eth0 := at("127.0.9.0/24", port), at("127.0.9.2", port), at("eth0", port)
	l, _ := healing(t, one, "eth0 127.0.9.2")
	c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	subsystems := sub(anyHosts, inRAM)
	taken := listen(t, "127.0.0.1:0").AddrPort().Port()
	fails := fmt.Sprintf(", {transport: tcp, address: 127.0.0.1, port: %d, on_unavailable: fail}",
		taken)
	for _, next := range []string{network, eth0, one, eth0, network, one} {
		_, ps := l.s.Plan(l.parse(next, subsystems))
		testutil.True(t, len(ps) == 0, "%s: %v", next, ps)
		l.refuse(next+fails, subsystems)
		l.apply(next, subsystems)
		if len(l.s.Addrs()) != 1 || c.Err() != nil {
			t.Fatalf("%s: ports %s, connection %v", next, ports(l.s), c.Err())
		}
	}
}
