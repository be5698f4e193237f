package soft

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// counting is a network that counts the calls of Open and fails the first one.
type counting struct {
	wire.Network
	opens int
}

func (c *counting) Open(n int) ([]wire.Conn, error) {
	if c.opens++; c.opens == 1 {
		return nil, unix.EADDRINUSE
	}
	return c.Network.Open(n)
}

// TestProvider opens the sockets when they are needed, once, and tries again after an error.
func TestProvider(t *testing.T) {
	net := &counting{
		Network: wiretest.New(wiretest.Options{}).Host("a", netip.MustParseAddr("192.0.2.1")),
	}
	p := New(Options{Network: net})
	testutil.Equal(t, net.opens, 0, "calls of Open by New")
	_, err := p.NewCM()
	testutil.True(t, errors.Is(err, unix.EADDRINUSE), "NewCM: %v", err)
	list := testutil.Value(p.Devices())(t)
	testutil.True(t, len(list) == 1 && list[0].Name == "soft0" && !list[0].IWARP, "%+v", list)
	c := testutil.Value(p.NewCM())(t)
	testutil.Equal(t, net.opens, 2, "calls of Open")
	names := map[string]bool{}
	for _, c := range p.Counters() {
		testutil.True(t, c.Device == "soft0" && c.Port == "1" && c.Value == 0 && !names[c.Counter],
			"%+v", c)
		names[c.Counter] = true
	}
	testutil.True(t, names["retransmissions"] && names["rcvd_icrc_errors"] && names["cm_dropped"],
		"%v", names)
	testutil.Must(t, c.Close())
	testutil.Must(t, p.Close())
	testutil.Must(t, p.Close())
	_, err = p.Devices()
	testutil.True(t, errors.Is(err, verbs.ErrClosed), "Devices of a closed provider: %v", err)
	testutil.Must(t, New(Options{}).Close()) // never used
}
