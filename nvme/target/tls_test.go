package target

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// TestTLSNames: on a queue with TLS the names of Connect are the names of the PSK identity, for
// subsystems and discovery.
func TestTLSNames(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true},
		SubsystemConfig{NQN: testSub + "b", AllowAnyHost: true})
	dial := func(host, sub string) fabric.QueueInfo {
		qi := info(nvme.TransportTCP)
		qi.TLS = &fabric.TLS{HostNQN: host, SubNQN: sub, Cipher: "TLS_AES_128_GCM_SHA256"}
		return qi
	}
	host := adminArgs(testSub).host
	refused := func(qi fabric.QueueInfo, sub string, want nvme.Status, hint string) {
		t.Helper()
		r.status(r.dialInfo(0, qi), adminArgs(sub).command(), want)
		r.refusals = r.recorder.Kinds()["connect refused"] - 1
		r.wantRefusal()
		if last := fmt.Sprint(r.recorder.Refusals()[0]); !strings.Contains(last, hint) {
			t.Errorf("refused with %s", last)
		}
	}
	refused(dial(testSub, testSub), testSub, nvme.ConnectInvalidHost, "that of another host")
	refused(dial(host, testSub), testSub+"b", refusedStatus, "for another subsystem")
	refused(dial(host, testSub), nvme.DiscoveryNQN, refusedStatus, "for another subsystem")
	counts := false
	removed := dial(host, testSub)
	removed.TLS.Counts = func() bool { return counts }
	refused(removed, testSub, refusedStatus, "has changed since the TLS handshake")
	counts = true
	r.connectHostInfo(0, removed, func(a *connectArgs) { a.sub = testSub })
	r.connectHostInfo(0, dial(host, nvme.DiscoveryNQN),
		func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	r.connectHostInfo(0, dial(host, testSub), func(a *connectArgs) { a.sub = testSub })
	r.connectHostInfo(0, info(nvme.TransportTCP), func(a *connectArgs) { a.sub = testSub + "b" })
	for _, c := range r.connections() {
		testutil.True(t, c.Subsystem == "" || (c.TLS != "") != (c.Subsystem == testSub+"b") &&
			(SecurityOf(&c) == SecurityTLS) == (c.TLS != ""), "%s: TLS %v", c.Subsystem, c.TLS)
	}
}

// TestTLSDiscovery: hosts are told which ports have TLS, also after a change.
func TestTLSDiscovery(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	r.must(r.target.AddPort(discovery.Port{
		ID: 1, Addr: fabric.Addr{Transport: nvme.TransportTCP, AddrPort: testLocal},
	}))
	h := discoveryHost(r, testLocal.String())
	const flow = nvme.TREQNoFlowControl
	for _, tc := range []struct {
		fabric.TLSPolicy
		nvme.TREQ
		nvme.TCPSecurity
	}{
		{fabric.TLSOff, flow, nvme.TCPNoSecurity},
		{fabric.TLSAllowed, flow | nvme.TREQNotRequired, nvme.TCPNoSecurity},
		{fabric.TLSRequired, flow | nvme.TREQRequired, nvme.TCPTLS13},
	} {
		r.target.SetPortListener(1, "", tc.TLSPolicy)
		_, list := h.discoveryLog()
		testutil.MustTrue(t, len(list) != 0, "no entries")
		for _, e := range list {
			if e.TREQ != tc.TREQ || e.TCPSecurity() != tc.TCPSecurity {
				t.Errorf("%v: TREQ %#x, SECTYPE %d", tc.TLSPolicy, uint8(e.TREQ), e.TCPSecurity())
			}
		}
	}
	r.must(r.target.AddPort(discovery.Port{
		ID: 2, Addr: fabric.Addr{Transport: nvme.TransportTCP, AddrPort: testLocal},
		TLS: fabric.TLSRequired,
	}))
	_, list := h.discoveryLog()
	if e := list[len(list)-1]; e.PORTID != 2 || e.TREQ != flow|nvme.TREQRequired {
		t.Errorf("port %d: TREQ %#x", e.PORTID, uint8(e.TREQ))
	}
}
