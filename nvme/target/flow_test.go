package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/backendtest"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestHosts: the queues of a host on a reactor share one count, until the last one has ended. Those
// of hosts that are not known to be allowed have a part together.
func TestHosts(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	h := r.raw[0]
	a, b := r.connectHost(2), r.connectHost(1)
	other := r.connectHost(1, func(c *connectArgs) { c.host = testHost + "0" })
	discovery := discoveryHost(r, "192.0.2.1:4420")
	if len(h.hosts) != 2 || h.hosts[testHost].sessions != 5 {
		t.Errorf("%d hosts", len(h.hosts))
	}
	limited := 0
	for s := range h.sessions.All() {
		if s.flow.Host == &h.strangers[1] {
			limited++
		}
	}
	if limited != 1 || h.strangers[1].Limit != h.memory.Max(nil)/strangersPart {
		t.Errorf("%d queues of hosts that are not known", limited)
	}
	a.hangUp()
	other.hangUp()
	discovery.hangUp()
	if len(h.hosts) != 1 || h.hosts[testHost].sessions != 2 {
		t.Errorf("%d hosts are left", len(h.hosts))
	}
	b.hangUp()
	if len(h.hosts) != 0 {
		t.Errorf("%d hosts are left", len(h.hosts))
	}
}

// TestHostConnectsAnew: what the transport has not given back yet counts for the host when it
// connects again.
func TestHostConnectsAnew(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	h := r.raw[0]
	a := r.connectHost(1)
	host := h.hosts[testHost]
	var left mem.Allocation
	if !h.memory.Alloc(&left, &host.admin, 4096) {
		t.Fatal("no memory")
	}
	a.hangUp()
	b := r.connectHost(1)
	if h.hosts[testHost] != host || host.share.Used() != 4096 {
		t.Error("the memory is forgotten")
	}
	b.hangUp()
	left.Free()
	other := r.connectHost(1, func(c *connectArgs) { c.host = testHost + "0" })
	if len(h.hosts) != 1 || h.hosts[testHost] != nil {
		t.Errorf("%d hosts are known", len(h.hosts))
	}
	other.hangUp()
}

// TestFlowOfNamespace: memory counts for the namespace of its command, also if another namespace
// had its slot before; and what a device that hangs keeps counts for that alone.
func TestFlowOfNamespace(t *testing.T) {
	dev := backendtest.NewFaulty(ramDeviceOpen(t, 1<<20, 512))
	closeLast(t, dev)
	next := ramDeviceOpen(t, 1<<20, 512)
	closeLast(t, next)
	r := newHarness(t, 1,
		SubsystemConfig{NQN: testSub, AllowAnyHost: true, Namespaces: []NamespaceConfig{
			{NSID: 1, Device: dev, Timeout: time.Second},
		}})
	h := r.raw[0]
	a := r.connectHost(1)
	a.io[0].NoZeroCopy = true
	read := func() *fabrictest.Command { return rw(nvme.NVMRead, 1, 0, 16, make([]byte, 8192)) }
	r.ok(a.io[0], read())
	dev.Hold(nil)
	r.send(a.io[0], read())
	r.w.Settle()
	ch, host := h.channels[0], h.hosts[testHost]
	if ch.share.Used() != 8192 || host.share.Used() != 8192 {
		t.Errorf("%d and %d bytes", ch.share.Used(), host.share.Used())
	}
	r.w.Advance(2 * time.Second) // it is given up
	if ch.share.Used() != 8192 || host.share.Used() != 0 || h.memory.Usage().Orphaned != 8192 {
		t.Errorf("%d and %d bytes after the timeout", ch.share.Used(), host.share.Used())
	}
	dev.Release()
	r.w.Settle()
	if ch.share.Used() != 0 || h.memory.Usage() != (mem.PoolUsage{Size: h.memory.Usage().Size}) {
		t.Errorf("%d bytes stay", ch.share.Used())
	}
	r.removeNamespace(1)
	r.must(r.target.AddNamespace(testSub, NamespaceConfig{NSID: 1, Device: next}))
	r.ok(a.io[0], read())
	if f := host.flows[0]; h.channels[0] == ch || f.Namespace != &h.channels[0].share {
		t.Error("the flow is that of the removed namespace")
	}
}
