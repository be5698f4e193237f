// Package verbsconf is the conformance suite of verbs bindings: it tests, on real connections, the
// behavior that a transport relies on. The fake has to pass it in ordinary tests, and the binding
// to rdma-core on machines with a device.
package verbsconf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Setup is the environment of the suite.
type Setup struct {
	// A listens at AddrA and B connects to it. They may be the same provider.
	A, B  verbs.Provider
	AddrA netip.Addr
	// FailDestroy makes Destroy of this queue pair of A fail until restore is called.
	FailDestroy func(verbs.QP) (restore func())
	// Timeout bounds every wait; 0 is 2 minutes.
	Timeout time.Duration
	// Rounds is the number of rounds of 16 messages that Allocations measures; 0 is 100. A network
	// that loses many packets takes long for them.
	Rounds int
	// Parallel: beside other tests. Allocations runs before, alone.
	Parallel bool
	// Part is the part of the suite to run, of Parts; all of it if Parts is 0. Each part takes the
	// time of its own tests, whose waits add up.
	Part, Parts int
}

// addr returns AddrA with port 0.
func (s *Setup) addr() netip.AddrPort { return netip.AddrPortFrom(s.AddrA, 0) }

// Run runs the suite.
func Run(t *testing.T, s Setup) {
	if s.Timeout == 0 {
		s.Timeout = 2 * time.Minute
	}
	if s.Rounds == 0 {
		s.Rounds = 100
	}
	if s.Part == 0 {
		t.Run("Allocations", func(t *testing.T) { testAllocations(t, &s) })
	}
	if s.Parallel {
		t.Parallel()
	}
	for i, c := range []struct {
		name string
		fn   func(*testing.T, *Setup)
	}{
		{"Devices", testDevices},
		{"CloseWhileNext", testCloseWhileNext},
		{"Listen", testListen},
		{"ListenWildcard", testListenWildcard},
		{"Connect", testConnect},
		{"ConnectRefused", testConnectRefused},
		{"Reject", testReject},
		{"ListenerClosed", testListenerClosed},
		{"DestroyUnread", testDestroyUnread},
		{"Disconnect", testDisconnect},
		{"DestroyConnected", testDestroyConnected},
		{"DestroyFails", testDestroyFails},
		{"Many", testMany},
		{"ManyCQs", testManyCQs},
		{"Churn", testChurn},
		{"SendRecv", testSendRecv},
		{"Inline", testInline},
		{"Write", testWrite},
		{"Read", testRead},
		{"ReadDepth", testReadDepth},
		{"Unsignaled", testUnsignaled},
		{"LateReceive", testLateReceive},
		{"SRQ", testSRQ},
		{"Notify", testNotify},
		{"Async", testAsync},
		{"Invalidate", testInvalidate},
		{"ToError", testToError},
		{"RemoteAccess", testRemoteAccess},
		{"LocalAccess", testLocalAccess},
		{"ShortReceive", testShortReceive},
	} {
		if s.Parts == 0 || i%s.Parts == s.Part {
			t.Run(c.name, func(t *testing.T) { c.fn(t, &s) })
		}
	}
}
