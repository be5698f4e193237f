package rdma

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
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

// noManager is a stack without a communication manager.
type noManager struct{ err error }

func (p noManager) Devices() ([]verbs.DeviceAttr, error) { return nil, p.err }
func (p noManager) NewCM() (verbs.CM, error)             { return nil, p.err }

// TestStacks: a listener uses the stack of its choice. Without one it uses a device if there is one
// or one is awaited, and else none.
func TestStacks(t *testing.T) {
	const at, other = "10.0.0.1", "10.0.0.9"
	with := func(address string, unlocked bool) func(*testing.T) verbs.Provider {
		return func(t *testing.T) verbs.Provider {
			f := verbstest.New(verbstest.Options{})
			t.Cleanup(f.Close)
			d := verbstest.RoCE("dev0", netip.MustParseAddr(address))
			d.Attr.Unlocked = unlocked
			f.AddHost("host", d)
			return f.Provider("host")
		}
	}
	machine := func(address string) func(*testing.T) verbs.Provider { return with(address, false) }
	without := func(err error) func(*testing.T) verbs.Provider {
		return func(*testing.T) verbs.Provider { return noManager{err} }
	}
	free, device, soft := fabric.AnyStack, fabric.DeviceStack, fabric.SoftStack
	iwarp := fabric.SoftIWARPStack
	taken := fmt.Errorf("UDP port 4791 is taken: %w", unix.EADDRINUSE)
	for _, c := range []struct {
		name          string
		choice        fabric.Stack
		address       string
		devices, soft func(*testing.T) verbs.Provider
		awaited       bool
		memlock       error
		want          fabric.Stack // fabric.AnyStack: the text of the error follows
		fails         string
	}{
		{"device", free, at, machine(at), machine(at), false, nil, device, ""},
		{"at all", free, "0.0.0.0", machine(at), machine(at), false, nil, device, ""},
		{"other device", free, at, machine(other), machine(at), false, nil, soft, ""},
		{"awaited", free, at, machine(other), machine(at), true, nil, free, "stack: soft"},
		{
			"no devices", free, at, without(verbs.ErrNoDevice), machine(at), true, unix.ENOMEM,
			soft, "",
		},
		{
			"at all without", free, "::", without(verbs.ErrNoDevice), machine(at), false, nil, soft,
			"",
		},
		{
			"not built", free, at, without(verbs.ErrNotBuilt), machine(at), true, unix.ENOMEM, soft,
			"",
		},
		{"forbidden", free, at, without(unix.EACCES), machine(at), false, nil, free, "permission"},
		{"memlock", free, at, machine(at), machine(at), false, errors.New("low"), free, "low"},
		{"nothing locked", free, at, with(at, true), machine(at), false, unix.ENOMEM, device, ""},
		{"memlock of others", free, at, machine(other), machine(at), false, unix.EIO, soft, ""},
		{"no soft", free, at, machine(other), nil, false, nil, free, "no RDMA device"},
		{"waits", device, at, machine(other), machine(at), false, nil, free, "no RDMA device"},
		{"soft", soft, at, machine(at), machine(at), false, unix.ENOMEM, soft, ""},
		{"no address", soft, at, machine(at), machine(other), false, nil, free, "ip address"},
		{"iWARP", iwarp, at, machine(at), machine(at), false, unix.ENOMEM, iwarp, ""},
		{"no port of iWARP", iwarp, at, machine(at), without(taken), false, nil, free, "ss -ltnp"},
		{"no port", soft, at, machine(at), without(taken), false, nil, free, "rdma_rxe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := false
			cfg := Config{
				Provider: c.devices(t), Stack: func(uint16) fabric.Stack { return c.choice },
				Awaited: func(uint16) bool { asked = true; return c.awaited },
				Memlock: func() error { return c.memlock },
			}
			if c.soft != nil {
				cfg.Soft = c.soft(t)
				if c.choice == iwarp {
					cfg.Soft, cfg.SoftIWARP = nil, cfg.Soft
				}
			}
			tr := New(cfg)
			defer func() { testutil.Check(t, tr.Close()) }()
			l, err := tr.Listen(fabric.Addr{
				Transport: nvme.TransportRDMA,
				AddrPort:  netip.AddrPortFrom(netip.MustParseAddr(c.address), 4420),
			}, 1, func(c fabric.Conn) { c.Close() })
			if c.want == free {
				testutil.Fails(t, err, c.fails, "listen")
				return
			}
			testutil.MustTrue(t, err == nil, "listen: %v", err)
			testutil.Equal(t, l.(*listener).Stack(), c.want, "stack")
			testutil.MustTrue(t, !asked || c.want == soft, "a device that serves is not awaited")
			testutil.Check(t, l.Close())
		})
	}
}

// qpNum is the queue pair number of the target's only queue.
func (b *harness) qpNum() (n uint32) {
	b.on(func() {
		for q := range b.g.queues.all() {
			n = q.qp.Num()
		}
	})
	return n
}

// Events that nobody looks at.
const commEst, gidChange verbs.AsyncType = 4, 18

func TestAsyncEventsOfQueuePairs(t *testing.T) {
	for _, ev := range []verbs.AsyncType{
		verbs.AsyncQPFatal, verbs.AsyncQPReqErr,
		verbs.AsyncQPAccessErr,
	} {
		b, q := joined(t, harnessOptions{}, ioParam(8))
		num := b.qpNum()
		b.f.Raise("target", verbs.AsyncEvent{Type: commEst, QPNum: num})
		b.f.Raise("target", verbs.AsyncEvent{Type: ev, QPNum: num + 1})
		testutil.MustEqual(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
		b.f.Raise("target", verbs.AsyncEvent{Type: ev, QPNum: num})
		b.idle()
		testutil.True(t, strings.Contains(b.log.String(), "the device reports "+ev.String()),
			"log without the reason:\n%s", b.log)
	}
}

// An idle queue never polls; only the event shows that its completion queue has failed.
func TestAsyncEventOfCompletionQueue(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(8))
	b.f.FailCQs("target")
	b.idle()
	testutil.True(t, strings.Contains(b.log.String(), "completion queue: "),
		"log without the reason:\n%s", b.log)
}

// A failed device ends its queues at once and is given up; the next connection starts afresh.
func TestAsyncDeviceFatal(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.host.connect(b.addr(), ioParam(8))
	b.host.connect(b.addr(), ioParam(8))
	b.f.Raise("target", verbs.AsyncEvent{Type: verbs.AsyncDeviceFatal})
	b.idle()
	testutil.Until(t, "retired", func() bool { return b.f.Live("target").PDs == 0 })
	testutil.True(t, strings.Contains(b.log.String(), errDeviceFatal.Error()),
		"log without the reason:\n%s", b.log)
	b.host.event(verbs.EventDisconnected)
	b.host.event(verbs.EventDisconnected)
	q := b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
}

// Ports and addresses come and go without effect on queues.
func TestAsyncEventsOfPorts(t *testing.T) {
	b, q := joined(t, harnessOptions{}, ioParam(8))
	for _, ev := range []verbs.AsyncType{
		verbs.AsyncPortErr, verbs.AsyncPortActive,
		gidChange, verbs.AsyncType(77),
	} {
		b.f.Raise("target", verbs.AsyncEvent{Type: ev})
	}
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
	testutil.Until(t, "log", func() bool {
		return strings.Count(b.log.String(), "PORT_ERR") == 1 &&
			strings.Contains(b.log.String(), "RDMA port is active")
	})
}

func TestAsyncCannotBeWatched(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	b.f.FailCalls("target", verbstest.CallWatch, 0, 1, nil)
	testutil.Equal(t, b.host.rejected(b.addr(), ioParam(8)), cmwire.NoResources, "")
	q := b.host.connect(b.addr(), ioParam(8))
	testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
}

// Missing settings get their defaults, and others stay unchanged.
func TestDefaults(t *testing.T) {
	c := Config{InCapsuleSize: -1, Limits: admission.Limits{Connections: 7}}
	c.SetDefaults()
	testutil.True(t, c.MaxDepth == 128 && c.Memory == 1<<30 && c.SRQSize == 0 &&
		c.DrainTimeout == time.Second && c.InCapsuleSize == 0 && c.Connections == 7, "%+v", c)
	c = Config{SRQSize: 129}
	c.SetDefaults()
	testutil.True(t, c.SRQSize == 2*srqSlabSlots && c.InCapsuleSize == 4<<10, "%+v", c)
}

// A connection that is closed instead of adopted is refused. Adopting it afterwards fails.
func TestConnClosed(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	result := make(chan error, 2)
	l := testutil.Value(b.tr.Listen(fabric.Addr{
		Transport: nvme.TransportRDMA,
		AddrPort:  netipWithPort(b.addr(), 0),
	}, 3, func(c fabric.Conn) {
		testutil.Equal(t, c.Info().PortID, 3, "port")
		result <- c.Close()
		result <- b.g.Adopt(c)
	}))(t)
	testutil.Equal(t, b.host.rejected(l.Addr().AddrPort, ioParam(8)), cmwire.NoResources, "")
	testutil.Check(t, testutil.Receive(t, "the end of Close", result))
	testutil.Is(t, testutil.Receive(t, "the end of Adopt", result), errClaimed, "after Close")
	b.idle()
}

// BenchmarkPoll makes 32 reads of 4 KiB, from capsule to response, on the fake fabric, which takes
// most of the time.
func BenchmarkPoll(b *testing.B) {
	for name, shared := range map[string]int{"own receives": 0, "shared receives": srqSlabSlots} {
		b.Run(name, func(b *testing.B) {
			m := newManual(b, verbstest.Options{},
				Config{Log: slog.New(slog.DiscardHandler), SRQSize: shared}, ioParam(32))
			sqes := make([]nvme.SQE, 32)
			for i := range sqes {
				sqes[i] = m.host.keyed(command(opRead, uint16(i), 0, 4096), i*4096, 4096)
			}
			m.ioRound(sqes)
			b.ReportAllocs()
			for b.Loop() {
				m.ioRound(sqes)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(sqes)),
				"ns/command")
		})
	}
}

// Each listener has its own type of service.
func TestListenerTOS(t *testing.T) {
	tos := func(portID uint16) uint8 {
		if portID == 3 {
			return 104
		}
		return 0
	}
	b := newHarness(t, harnessOptions{cfg: Config{TOS: tos}})
	for port, want := range map[uint16]uint8{3: 104, 4: 0} {
		l := testutil.Value(b.tr.Listen(fabric.Addr{
			Transport: nvme.TransportRDMA,
			AddrPort:  netipWithPort(b.addr(), 0),
		}, port, b.adopt))(t)
		testutil.Equal(t, l.(*listener).id.(interface{ TOS() uint8 }).TOS(), want, "port %d", port)
		testutil.Check(t, l.Close())
	}
}

// Queues that do not fit into the memory are refused. Queues that leave make room.
func TestQueueMemory(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{Limits: admission.Limits{Memory: 1 << 20}}})
	two := ioParam(100) // 408 KiB each, and 24 with Connect
	q := b.host.associate(b.addr(), two)
	b.host.associate(b.addr(), two)
	testutil.Equal(t, b.host.rejected(b.addr(), two), cmwire.NoResources, "")
	testutil.True(t, strings.Contains(b.log.String(),
		"2 queues have 864 KiB of memory and this one wants 408, the limit is 1024"), "log:\n%s",
		b.log)
	b.host.associate(b.addr(), adminParam()) // 2.5 KiB
	q.disconnect()
	b.host.event(verbs.EventDisconnected)
	testutil.Until(t, "two connections", func() bool { return b.tr.Usage().Connections == 2 })
	testutil.Equal(t, b.host.connect(b.addr(), two).do(command(opNothing, 1, 0, 0), nil),
		nvme.Success, "")
}
