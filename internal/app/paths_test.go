package app

import (
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/metrics"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
