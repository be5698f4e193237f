package wire_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

var (
	addrA  = netip.MustParseAddr("192.0.2.1")
	addrB  = netip.MustParseAddr("192.0.2.2")
	addrA6 = netip.MustParseAddr("2001:db8::1")
	addrB6 = netip.MustParseAddr("2001:db8::2")
)

type options = wiretest.Options

// pair is a network with hosts a and b, with one engine each.
func pair(t testing.TB, opts options) (m *wiretest.Network, a, b []wire.Conn) {
	m = wiretest.New(opts)
	a = wire.Open(t, m.Host("a", addrA, addrA6), 1)
	b = wire.Open(t, m.Host("b", addrB, addrB6), 1)
	return m, a, b
}

func TestNetwork(t *testing.T) {
	_, a, b := pair(t, options{Manual: true})
	for _, p := range []*wire.Path{{Local: addrA, Remote: addrB}, {Local: addrA6, Remote: addrB6}} {
		for i := range 100 {
			wire.Send(t, a[0], p, 5, uint32(i), 256)
		}
		a[0].Flush()
		var got []wire.Packet
		for wire.Readable(t, b[0], 0) {
			for _, k := range wire.Recv(t, b[0]) {
				k.Data = bytes.Clone(k.Data)
				got = append(got, k)
			}
		}
		testutil.MustTrue(t, len(got) == 100, "%d packets", len(got))
		for i, k := range got {
			testutil.MustTrue(t, wire.Received(k, uint32(i), 256) &&
				k.Local == netip.AddrPortFrom(p.Remote, wire.Port) && k.Remote.Addr() == p.Local,
				"packet %d: %+v", i, k)
		}
	}
	wire.Send(t, a[0], &wire.Path{Local: addrA, Remote: addrB}, wire.CMQPN, 7, 0)
	a[0].Flush()
	if got := wire.Recv(t, b[1]); len(got) != 1 || !wire.Received(got[0], 7, 0) {
		t.Errorf("to the communication manager: %v", got)
	}
	// A packet to nobody is lost, one of two families dropped.
	wire.Send(t, a[0], &wire.Path{Local: addrA, Remote: netip.MustParseAddr("192.0.2.9")}, 5, 0, 0)
	wire.Send(t, a[0], &wire.Path{Local: addrA, Remote: addrB6}, 5, 0, 0)
	a[0].Flush()
	if s, d := a[0].Stats().Sent.Load(), a[0].Stats().Dropped.Load(); s != 202 || d != 1 {
		t.Errorf("%d sent, %d dropped", s, d)
	}
}

func TestClock(t *testing.T) {
	m, a, b := pair(t, options{Manual: true, Delay: time.Millisecond})
	p := &wire.Path{Local: addrA, Remote: addrB}
	wire.Send(t, a[0], p, 5, 0, 0)
	a[0].Flush()
	testutil.MustTrue(t, !wire.Readable(t, b[0], 0) && len(wire.Recv(t, b[0])) == 0,
		"arrived too early")
	b[0].SetTimer(b[0].Now() + 3*time.Millisecond)
	for _, want := range []struct {
		next time.Duration
		n    int
	}{{time.Millisecond, 1}, {2 * time.Millisecond, 0}} {
		d, ok := m.Next()
		testutil.MustTrue(t, ok && d == want.next, "next in %v %v, want %v", d, ok, want.next)
		m.Advance(d - 1)
		testutil.MustTrue(t, !wire.Readable(t, b[0], 0), "readable too early")
		m.Advance(1)
		testutil.MustTrue(t, wire.Readable(t, b[0], 0), "not readable")
		if n := len(wire.Recv(t, b[0])); n != want.n || wire.Readable(t, b[0], 0) {
			t.Fatalf("%d packets, want %d", n, want.n)
		}
	}
	if _, ok := m.Next(); ok {
		t.Error("something is due")
	}
	b[0].SetTimer(b[0].Now() + 1)
	b[0].SetTimer(0)
	m.Advance(time.Hour)
	testutil.True(t, !wire.Readable(t, b[0], 0), "a stopped timer fired")
}

// The real clock: packets with a delay and timers make the descriptor readable.
func TestRealClock(t *testing.T) {
	_, a, b := pair(t, options{Delay: time.Millisecond})
	wire.Send(t, a[0], &wire.Path{Local: addrA, Remote: addrB}, 5, 9, 0)
	a[0].Flush()
	var got []wire.Packet
	for len(got) == 0 && wire.Readable(t, b[0], 10_000) {
		got = wire.Recv(t, b[0])
	}
	testutil.MustTrue(t, len(got) == 1 && wire.Received(got[0], 9, 0), "%v", got)
	b[0].SetTimer(b[0].Now() + time.Millisecond)
	testutil.MustTrue(t, wire.Readable(t, b[0], 10_000), "the timer does not fire")
	wire.Recv(t, b[0])
	testutil.True(t, !wire.Readable(t, b[0], 0), "readable after the timer was consumed")
}

func TestFaults(t *testing.T) {
	const n = 2000
	for _, tt := range []struct {
		name  string
		opts  options
		check func(arrived, doubles, disorder, ce int, s *wire.Stats) bool
	}{
		{"none", options{}, func(arrived, doubles, disorder, ce int, s *wire.Stats) bool {
			return arrived == n && doubles == 0 && disorder == 0 && ce == 0
		}},
		{"loss", options{Loss: .1}, func(arrived, doubles, disorder, _ int, s *wire.Stats) bool {
			return arrived > n*85/100 && arrived < n*95/100 && doubles == 0 && disorder == 0
		}},
		{"doubles", options{Duplicate: .1}, func(arrived, doubles, _, _ int, s *wire.Stats) bool {
			return arrived == n+doubles && doubles > n*5/100 && doubles < n*15/100
		}},
		{"corruption", options{Corrupt: .1}, func(arrived, _, _, _ int, s *wire.Stats) bool {
			return arrived+int(s.BadICRC.Load()) == n && arrived > n*85/100 && arrived < n*95/100
		}},
		{"disorder", options{Reorder: .1}, func(arrived, _, disorder, _ int, s *wire.Stats) bool {
			return arrived == n && disorder > n*1/100 && disorder < n*15/100
		}},
		{"marks", options{Mark: .1}, func(arrived, _, _, ce int, s *wire.Stats) bool {
			return arrived == n && ce > n*5/100 && ce < n*15/100
		}},
		{"refusal", options{Refuse: .5}, func(arrived, _, disorder, _ int, s *wire.Stats) bool {
			return arrived == n && disorder == 0
		}},
		{"filter", options{Filter: func(p *wire.Packet) bool {
			return binary.BigEndian.Uint32(p.Data[8:])%2 == 0
		}}, func(arrived, _, _, _ int, s *wire.Stats) bool { return arrived == n/2 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.opts.Manual = true
			m, a, b := pair(t, tt.opts)
			p := &wire.Path{Local: addrA, Remote: addrB, TOS: wire.ECT0}
			var (
				seen                               [n]bool
				arrived, doubles, disorder, ce, at int
			)
			for i := 0; i < n || wire.Readable(t, b[0], 0) || wire.Readable(t, a[0], 0); {
				if i < n {
					wire.Send(t, a[0], p, 5, uint32(i), 64)
					i++
				}
				wire.Recv(t, a[0])
				a[0].Flush()
				m.Advance(10 * time.Microsecond)
				if i == n {
					m.Advance(time.Second)
				}
				for _, k := range wire.Recv(t, b[0]) {
					psn := int(binary.BigEndian.Uint32(k.Data[8:]))
					testutil.MustTrue(t, wire.Received(k, uint32(psn), 64), "%+v", k)
					arrived++
					if seen[psn] {
						doubles++
					}
					seen[psn] = true
					if psn < at {
						disorder++
					}
					at = psn
					if k.CE {
						ce++
					}
				}
			}
			testutil.True(t, tt.check(arrived, doubles, disorder, ce, b[0].Stats()),
				"%d of %d arrived, %d doubles, %d out of order, %d marked", arrived, n, doubles,
				disorder, ce)
		})
	}
}

// A socket that refuses: Alloc returns nil when the batch is full, and goes on after FD was
// readable. A full queue loses packets.
func TestRefuses(t *testing.T) {
	_, a, b := pair(t, options{Manual: true, Refuse: 1, Queue: 10})
	p := &wire.Path{Local: addrA, Remote: addrB}
	for i := range wire.MaxBatch {
		wire.Send(t, a[0], p, 5, uint32(i), 4)
	}
	testutil.MustTrue(t, a[0].Alloc(p, packet.BTHSize) == nil && wire.Readable(t, a[0], 0),
		"the batch is not full")
	wire.Recv(t, a[0])
	wire.Send(t, a[0], p, 5, wire.MaxBatch, 4)
	if n := len(wire.Recv(t, b[0])); n != 10 || b[0].Stats().Overflows.Load() != wire.MaxBatch-10 {
		t.Errorf("%d packets, %d lost", n, b[0].Stats().Overflows.Load())
	}
}

func TestOpen(t *testing.T) {
	m := wiretest.New(options{MTU: 1500})
	h := m.Host("a", addrA, addrA6)
	conns := testutil.Value(h.Open(3))(t)
	if _, err := h.Open(1); err == nil || len(conns) != 4 {
		t.Errorf("opened twice, %d conns", len(conns))
	}
	for _, c := range conns {
		testutil.Must(t, c.Close())
	}
	wire.Open(t, h, 2)
	local, mtu, err := h.Route(netip.Addr{}, addrB6)
	testutil.True(t, local == addrA6 && mtu == 1024 && err == nil, "route %s %d %v", local, mtu,
		err)
	if _, _, err := h.Route(addrB, addrA); err == nil {
		t.Error("a route from an address of others")
	}
}

// Nothing is allocated per packet.
func TestAllocations(t *testing.T) {
	_, a, b := pair(t, options{})
	p := &wire.Path{Local: addrA, Remote: addrB}
	round := func() {
		for i := range 16 {
			wire.Send(t, a[0], p, 5, uint32(i), 1024)
		}
		a[0].Flush()
		a[0].SetTimer(a[0].Now() + time.Second)
		if n := len(wire.Recv(t, b[0])); n != 16 {
			t.Fatalf("%d packets", n)
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
