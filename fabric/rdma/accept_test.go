package rdma

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func TestRejects(t *testing.T) {
	with := func(change func(*hostParam)) hostParam { p := ioParam(32); change(&p); return p }
	fmt1 := make([]byte, 32)
	fmt1[0], fmt1[4], fmt1[6] = 1, 32, 31
	tests := []struct {
		name string
		p    hostParam
		want cmwire.Status
	}{
		{
			"no private data", with(func(p *hostParam) { p.private = []byte{} }),
			cmwire.InvalidLength,
		},
		{"record format", with(func(p *hostParam) { p.private = fmt1 }), cmwire.InvalidRecFmt},
		{"queue ID", with(func(p *hostParam) { p.qid = 0xFFFF }), cmwire.InvalidQID},
		{
			"admin queue too deep",
			with(func(p *hostParam) { p.qid, p.cntlid, p.hsqsize = 0, 0, 128 }),
			cmwire.InvalidHSQSize,
		},
		{"queue too deep", with(func(p *hostParam) { p.hsqsize = 128 }), cmwire.InvalidHSQSize},
		{"deepest", with(func(p *hostParam) { p.hsqsize = 0xFFFF }), cmwire.InvalidHSQSize},
		{"no depth", with(func(p *hostParam) { p.hsqsize = 0 }), cmwire.InvalidHSQSize},
		{"no receives", with(func(p *hostParam) { p.hrqsize = 0 }), cmwire.InvalidHRQSize},
		{"no READs served", with(func(p *hostParam) { p.reads = 0 }), cmwire.InvalidIRD},
		{"controller ID", with(func(p *hostParam) { p.cntlid = 0xFFFE }), cmwire.InvalidCNTLID},
	}
	both(t, func(t *testing.T, o harnessOptions) {
		b := newHarness(t, o)
		for _, tt := range tests {
			before := len(b.log.String())
			testutil.Equal(t, b.host.rejected(b.addr(), tt.p), tt.want, "%s", tt.name)
			line := b.log.String()[before:]
			if strings.Contains(line, "RDMA connection rejected") &&
				(!strings.Contains(line, " expected=") || !strings.Contains(line, " received=")) {
				t.Errorf("%s: %s", tt.name, line)
			}
		}
		if o.fabric.IWARP { // RoCE pads, which hides the length
			short := with(func(p *hostParam) { p.private = []byte{0, 0, 1, 0, 32, 0, 31, 0, 1, 0} })
			testutil.Equal(t, b.host.rejected(b.addr(), short), cmwire.InvalidLength, "10 bytes")
		}
		n := strings.Count(b.log.String(), "RDMA connection rejected")
		testutil.True(t, n == min(len(tests), 10) || o.fabric.IWARP,
			"%d rejections were logged:\n%s", n, b.log)
		b.idle()
		q := b.host.connect(b.addr(), ioParam(128))
		testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
	})
}

func TestQueueInfo(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	p := ioParam(16)
	p.qid, p.cntlid = 5, 77
	b.host.connect(b.addr(), p)
	testutil.Until(t, "open", func() bool { return b.h.Opened.Load() == 1 })
	var i fabric.QueueInfo
	b.on(func() { i = *b.h.Queue.Info() })
	testutil.Equal(t, i.Remote.Addr(), b.f.Addr("host"), "remote %v", i.Remote)
	i.Remote = netip.AddrPort{}
	want := fabric.QueueInfo{
		Transport: nvme.TransportRDMA, Local: b.addr(), PortID: 7, QID: 5, CNTLID: 77, MaxDepth: 16,
		InCapsuleSize: 4096, MSDBD: 16,
	}
	testutil.Equal(t, i, want, "")
}

func TestListenErrors(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	rdma := func(s string) fabric.Addr {
		return fabric.Addr{Transport: nvme.TransportRDMA, AddrPort: netip.MustParseAddrPort(s)}
	}
	_, err := b.tr.Listen(rdma("203.0.113.9:4420"), 1, b.adopt)
	testutil.True(t, errors.Is(err, verbs.ErrNoDevice) && strings.Contains(err.Error(),
		"203.0.113.9:4420") && strings.Contains(err.Error(), "rdma link"), "no device: %v", err)
	testutil.Fails(t, testutil.Err(b.tr.Listen(b.l.Addr(), 1, b.adopt)), "another program",
		"port in use")
	if _, err := b.tr.Listen(fabric.Addr{Transport: nvme.TransportTCP, AddrPort: b.addr()}, 1,
		b.adopt); err == nil {
		t.Error("listened for TCP")
	}
	b.f.FailCalls("other", verbstest.CallCreateCM, 0, 1, nil)
	other := New(Config{Provider: b.f.Provider("other")})
	testutil.True(t, testutil.Err(other.Listen(rdma("0.0.0.0:4420"), 1, b.adopt)) != nil,
		"listened without a communication manager")
	testutil.Check(t, other.Close())
	testutil.True(t, testutil.Err(other.Listen(rdma("0.0.0.0:4420"), 1, b.adopt)) != nil,
		"listened after Close")
}

func TestWildcards(t *testing.T) {
	for _, listen := range []string{"0.0.0.0", "::"} {
		t.Run(listen, func(t *testing.T) {
			b := newHarness(t, harnessOptions{})
			addr := netip.AddrPortFrom(netip.MustParseAddr(listen), 0)
			l, err := b.tr.Listen(fabric.Addr{Transport: nvme.TransportRDMA, AddrPort: addr}, 2,
				b.adopt)
			testutil.Must(t, err)
			testutil.True(t, l.Addr().Port() != 0, "no port was chosen")
			for _, a := range b.f.Addrs("target") {
				if a.Is6() && listen != "::" {
					continue
				}
				q := b.host.connect(netip.AddrPortFrom(a, l.Addr().Port()), ioParam(4))
				testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
				var local netip.AddrPort
				b.on(func() { local = b.h.Queue.Info().Local })
				testutil.Equal(t, local.Addr(), a, "local address %v", local)
			}
			testutil.Check(t, l.Close())
		})
	}
}

// A group reports its number of I/O queues, and a connection the NUMA node of its device.
func TestLoad(t *testing.T) {
	b := newHarness(t, harnessOptions{setup: func(f *verbstest.Fabric) {
		d := verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.1"))
		d.Attr.Node = 3
		f.AddHost("target", d)
	}})
	b.host.connect(b.addr(), adminParam())
	qs := []*hostQueue{b.host.connect(b.addr(), ioParam(8)), b.host.connect(b.addr(), ioParam(8))}
	n := b.g.Load()
	testutil.True(t, n == 2, "load %d with two I/O queues", n)
	b.on(func() {
		testutil.Equal(t, b.g.queues.entries[1].v.conn.Node(), 3, "the device is on node")
	})
	qs[0].disconnect()
	b.host.event(verbs.EventDisconnected)
	testutil.Until(t, "one I/O queue", func() bool { return b.g.Load() == 1 })
}
