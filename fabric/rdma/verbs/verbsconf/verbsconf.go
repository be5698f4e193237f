// Package verbsconf is the conformance suite of verbs bindings: what a transport relies on, tried on a real connection. The fake
// passes it in ordinary tests; the binding to rdma-core passes it where there is a device.
package verbsconf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Setup is where the suite runs.
type Setup struct {
	// A listens at AddrA and B connects to it. They may be the same provider.
	A, B  verbs.Provider
	AddrA netip.Addr
	// Timeout bounds every wait; 0 is 10 s.
	Timeout time.Duration
}

// vendorSIW is the vendor ID of the kernel's software iWARP (SIW_VENDOR_ID in drivers/infiniband/sw/siw/siw.h). It lets a peer read
// a region without the right to, and goes on after a SEND that could not invalidate its key.
const vendorSIW = 0x626d74

// Run runs the suite.
func Run(t *testing.T, s Setup) {
	if s.Timeout == 0 {
		s.Timeout = 10 * time.Second
	}
	for _, c := range []struct {
		name string
		fn   func(*testing.T, *Setup)
	}{
		{"Devices", testDevices},
		{"CloseWhileNext", testCloseWhileNext},
		{"Listen", testListen},
		{"ListenWildcard", testListenWildcard},
		{"Connect", testConnect},
		{"ConnectNobody", testConnectNobody},
		{"Reject", testReject},
		{"ListenerGone", testListenerGone},
		{"DestroyUnread", testDestroyUnread},
		{"Disconnect", testDisconnect},
		{"DestroyConnected", testDestroyConnected},
		{"Many", testMany},
		{"Churn", testChurn},
		{"SendRecv", testSendRecv},
		{"Inline", testInline},
		{"Write", testWrite},
		{"Read", testRead},
		{"ReadDepth", testReadDepth},
		{"Fence", testFence},
		{"Unsignalled", testUnsignalled},
		{"LateReceive", testLateReceive},
		{"SRQ", testSRQ},
		{"Notify", testNotify},
		{"Async", testAsync},
		{"Invalidate", testInvalidate},
		{"ToError", testToError},
		{"RemoteAccess", testRemoteAccess},
		{"LocalAccess", testLocalAccess},
		{"ShortReceive", testShortReceive},
		{"Allocations", testAllocations},
	} {
		t.Run(c.name, func(t *testing.T) { c.fn(t, &s) })
	}
}
