package app

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestTransportKeys: limits and digests of new connections change. Existing connections stay, and
// after a failed change everything is as before.
func TestTransportKeys(t *testing.T) {
	s := started(t, Options{Config: parse(t, anyPort)})
	ctx := testutil.Context(t)
	connect := func(digest bool) (*host.Controller, error) {
		c, err := host.Connect(ctx, host.TCP{
			Addr: s.Addrs()[0].AddrPort, HeaderDigest: digest,
		}, hostOptions(testNQN))
		if err == nil {
			t.Cleanup(c.Close)
		}
		return c, err
	}
	want := func(mqes uint16, digest bool) {
		t.Helper()
		c := testutil.Value(connect(digest))(t)
		testutil.Equal(t, c.CAP().MQES(), mqes, "MQES")
	}
	want(127, true)
	const changed = "tcp: {queue_depth: 64, header_digest: false, max_connections: 5}"
	if changes, err := s.Apply(parse(t, anyPort, changed)); err != nil || len(changes) != 1 ||
		changes[0].Restart() {
		t.Fatalf("%v, %v", changes, err)
	}
	want(63, false)
	testutil.True(t, testutil.Err(connect(true)) != nil, "a header digest")
	list, err := s.connections(ctx)
	if err != nil || !slices.ContainsFunc(list, func(c observed.Connection) bool {
		return c.HeaderDigest && c.Host != ""
	}) {
		t.Errorf("the first connection has lost its digest: %+v, %v", list, err)
	}

	taken := listen(t, "127.0.0.1:0").AddrPort()
	if _, err := s.Apply(parse(t, anyPort, "tcp: {queue_depth: 256, max_connections: 100}",
		fmt.Sprintf("metrics: {listen: %q}", taken))); err == nil {
		t.Fatal("metrics are served at an address that is in use")
	}
	want(63, false)
	testutil.True(t, testutil.Err(connect(false)) != nil,
		"a fourth connection, which would leave one for all others")
}

// TestDepthOfController: the queues of a controller may be as deep as it has announced, even if new
// controllers announce less.
func TestDepthOfController(t *testing.T) {
	network := rdmaNetwork(t, "127.0.0.1")
	both := anyPort + ", " + onRDMA("port: 4420")
	s := started(t, Options{Config: parse(t, both), Verbs: network.Provider("target")})
	ctx := testutil.Context(t)
	transports := []host.Transport{host.TCP{Addr: s.Addrs()[0].AddrPort}, host.RDMA{
		Provider: network.Provider("host"), Addr: netip.MustParseAddrPort("127.0.0.1:4420"),
	}}
	connect := func(tr host.Transport) *host.Controller {
		c := testutil.Value(host.Connect(ctx, tr, hostOptions(testNQN)))(t)
		t.Cleanup(c.Close)
		return c
	}
	var before []*host.Controller
	for _, tr := range transports {
		before = append(before, connect(tr))
	}
	testutil.Value(s.Apply(parse(t, both, "tcp: {queue_depth: 32}", "rdma: {queue_depth: 32}")))(t)
	for i, tr := range transports {
		depth := int(before[i].CAP().MQES()) + 1
		q, err := before[i].OpenQueue(ctx, 1, depth)
		testutil.MustTrue(t, err == nil && depth > 32, "%d entries: %v", depth, err)
		q.Close()
		testutil.True(t, testutil.Err(connect(tr).OpenQueue(ctx, 1, depth)) != nil,
			"a controller has deeper queues than it says")
	}
}
