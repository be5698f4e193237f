package soft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestLinkLocal connects to a link-local IPv6 address of this machine: only with its zone it is an
// address.
func TestLinkLocal(t *testing.T) {
	net := wire.NewUDP(wire.UDPOptions{Port: testutil.FreePort(t)})
	list := testutil.Value(net.Addrs())(t)
	at := slices.IndexFunc(list, func(i wire.Interface) bool {
		return i.Up && i.Addr.Is6() && i.Addr.IsLinkLocalUnicast()
	})
	if at < 0 {
		t.Skip("no interface has a link-local IPv6 address")
	}
	addr := list[at].Addr
	cm := testutil.Value(provider(t, net, 1, patient).NewCM())(t)
	l := testutil.Value(cm.Listen(netip.AddrPortFrom(addr, 0), 1, 0))(t)
	next := func(want verbs.EventType) verbs.Event {
		t.Helper()
		ev := testutil.Value(cm.Next())(t)
		testutil.MustEqual(t, ev.Type, want, "event")
		return ev
	}
	active := testutil.Value(cm.NewID())(t)
	testutil.Must(t, active.ResolveAddr(netip.AddrPort{}, l.Local(), 0))
	next(verbs.EventAddrResolved)
	testutil.Must(t, active.ResolveRoute(0))
	next(verbs.EventRouteResolved)
	pd := testutil.Value(active.Device().AllocPD())(t)
	cq := testutil.Value(active.Device().CreateCQ(16, nil, 0))(t)
	init := verbs.QPInit{
		SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	}
	qa := testutil.Value(active.CreateQP(pd, init))(t)
	testutil.Must(t, active.Connect(verbs.ConnParam{}))
	passive := next(verbs.EventConnectRequest).ID
	testutil.Equal(t, passive.Local(), l.Local(), "local address")
	testutil.Equal(t, passive.Remote().Addr(), addr, "remote address")
	qp := testutil.Value(passive.CreateQP(pd, init))(t)
	testutil.Must(t, passive.Accept(verbs.ConnParam{}))
	next(verbs.EventEstablished)
	next(verbs.EventEstablished)
	for _, destroy := range []func() error{
		qa.Destroy, qp.Destroy, active.Destroy, passive.Destroy, l.Destroy, cq.Destroy, pd.Dealloc,
		cm.Close,
	} {
		testutil.Must(t, destroy())
	}
}
