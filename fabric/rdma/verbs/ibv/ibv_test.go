//go:build cgo

package ibv

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/ibvstub"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// stub has the queues of an ibvstub.Stub as those of this package.
type stub struct{ *ibvstub.Stub }

func newStub() stub      { return stub{ibvstub.New()} }
func (s stub) qp() *qp   { q := new(qp); set(&q.c, s.QP()); return q }
func (s stub) srq() *srq { q := new(srq); set(&q.c, s.SRQ()); return q }
func (s stub) cq() *cq   { q := new(cq); set(&q.c, s.CQ()); return q }

// set makes a pointer to a C structure of one of p.
func set[T any](to **T, p unsafe.Pointer) { *to = (*T)(p) }

// total is the sum computed by the stub's driver.
func total(wrs []verbs.SendWR, sges []verbs.SGE) (sum uint64) {
	for _, w := range wrs {
		sum += w.WRID + uint64(w.Opcode) + uint64(w.Flags) + w.RemoteAddr + uint64(w.RKey) +
			uint64(w.InvalidateRKey)
		sum += totalSGE(sges[w.FirstSGE:][:w.NumSGE])
	}
	return sum
}

func totalSGE(sges []verbs.SGE) (sum uint64) {
	for _, g := range sges {
		sum += g.Addr + uint64(g.Length) + uint64(g.LKey)
	}
	return sum
}

func sendBatch(n int) ([]verbs.SendWR, []verbs.SGE) {
	wrs, sges := make([]verbs.SendWR, n), make([]verbs.SGE, 2*n)
	for i := range wrs {
		x := uint64(i + 1)
		wrs[i] = verbs.SendWR{
			WRID: x << 32, RemoteAddr: x << 20, Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled,
			FirstSGE: uint32(2 * i), NumSGE: uint32(i % 3), RKey: uint32(7 * x),
			InvalidateRKey: uint32(3 * x),
		}
		sges[2*i] = verbs.SGE{Addr: x << 40, Length: uint32(11 * x), LKey: uint32(13 * x)}
		sges[2*i+1] = verbs.SGE{Addr: x << 41, Length: uint32(17 * x), LKey: uint32(19 * x)}
	}
	return wrs, sges
}

func recvBatch(n int) []verbs.RecvWR {
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		x := uint64(i + 1)
		wrs[i] = verbs.RecvWR{
			WRID: x << 32, NumSGE: x % 3,
			SGE: [2]verbs.SGE{
				{Addr: x << 40, Length: uint32(x), LKey: uint32(3 * x)},
				{Addr: x << 41, Length: uint32(5 * x)},
			},
		}
	}
	return wrs
}

func TestPost(t *testing.T) {
	s := newStub()
	defer s.Free()
	// One chain, several chains, and queues that fill at every position of a chain.
	for _, n := range []int{0, 1, 2, 63, 64, 65, 200} {
		for _, room := range []int{0, 1, 63, 64, 65, 199, 1000} {
			want := min(n, room)
			var wantErr error
			if room < n {
				wantErr = unix.ENOMEM
			}
			check := func(call string, got int, err error, wantSum uint64) {
				t.Helper()
				posted, sum := s.Seen()
				if got != want || posted != want || sum != wantSum || !errors.Is(err, wantErr) {
					t.Errorf("%s of %d with room for %d: %d, %v, driver saw %d, sum %#x; "+
						"want %d, %v, sum %#x", call, n, room, got, err, posted, sum, want,
						wantErr, wantSum)
				}
			}
			wrs, sges := sendBatch(n)
			s.Room(room)
			got, err := s.qp().PostSend(wrs, sges)
			check("PostSend", got, err, total(wrs[:want], sges))

			recvs := recvBatch(n)
			var sum uint64
			for _, w := range recvs[:want] {
				sum += w.WRID + totalSGE(w.SGE[:w.NumSGE])
			}
			s.Room(room)
			got, err = s.qp().PostRecv(recvs)
			check("PostRecv", got, err, sum)
			s.Room(room)
			got, err = s.srq().PostRecv(recvs)
			check("SRQ.PostRecv", got, err, sum)
		}
	}
}

// TestPostBounds posts work requests with elements beyond the array.
func TestPostBounds(t *testing.T) {
	s := newStub()
	defer s.Free()
	s.Room(10)
	for _, w := range []verbs.SendWR{
		{FirstSGE: 2, NumSGE: 1},
		{FirstSGE: 1, NumSGE: 2},
		{FirstSGE: 1<<32 - 1, NumSGE: 1},
		{NumSGE: 1<<32 - 1},
	} {
		n, err := s.qp().PostSend([]verbs.SendWR{w}, make([]verbs.SGE, 2))
		testutil.True(t, n == 0 && errors.Is(err, unix.EINVAL),
			"PostSend(%+v): %d, %v, want EINVAL", w, n, err)
	}
	n, err := s.qp().PostRecv([]verbs.RecvWR{{NumSGE: 3}})
	testutil.True(t, n == 0 && errors.Is(err, unix.EINVAL),
		"PostRecv of 3 elements: %d, %v, want EINVAL", n, err)
	n, _ = s.Seen()
	testutil.True(t, n == 0, "the driver got %d", n)
}

func TestPoll(t *testing.T) {
	s := newStub()
	defer s.Free()
	for _, have := range []int{0, 1, 63, 64, 65, 200} {
		for _, size := range []int{0, 1, 64, 65, 256} {
			s.Complete(have)
			wcs := make([]verbs.WC, size+1)
			n, err := s.cq().Poll(wcs[:size])
			testutil.MustTrue(t, n == min(have, size) && err == nil, "Poll of %d with %d: %d, %v",
				size, have, n, err)
			for i, wc := range wcs {
				want := verbs.WC{}
				if i < n {
					want = verbs.WC{
						WRID: uint64(have - i), Status: verbs.WCLocLenErr, Opcode: verbs.WCRecv,
						VendorErr: 3, ByteLen: 4,
						InvalidatedRKey: 5, QPNum: 6, Flags: verbs.WCWithInv,
					}
				}
				testutil.MustEqual(t, wc, want, "completion %d", i)
			}
		}
	}
	s.Complete(-1)
	n, err := s.cq().Poll(make([]verbs.WC, 4))
	testutil.MustTrue(t, n == 0 && err != nil, "Poll of a dead queue: %d, %v", n, err)
}

func TestDataPathAllocations(t *testing.T) {
	s := newStub()
	defer s.Free()
	q, c, r := s.qp(), s.cq(), s.srq()
	if n := testutil.AllocsPerRun(100, func() {
		var wcs [32]verbs.WC // on the stack: passing it to C must not make it escape
		var wrs [32]verbs.SendWR
		var recvs [32]verbs.RecvWR
		var sges [32]verbs.SGE
		s.Room(96)
		s.Complete(32)
		sent, _ := q.PostSend(wrs[:], sges[:])
		received, _ := q.PostRecv(recvs[:])
		shared, _ := r.PostRecv(recvs[:])
		polled, _ := c.Poll(wcs[:])
		if err := c.ReqNotify(); err != nil || sent+received+shared+polled != 4*32 {
			t.Error(sent, received, shared, polled, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAcknowledgement: all watchers know an event before it is acknowledged.
func TestAcknowledgement(t *testing.T) {
	var w watchers
	var seen []string
	for _, name := range []string{"first", "second"} {
		fn := func(ev verbs.AsyncEvent) { seen = append(seen, name+" "+ev.Type.String()) }
		w.fns = append(w.fns, &fn)
	}
	w.pass(verbs.AsyncEvent{Type: verbs.AsyncQPReqErr, QPNum: 7},
		func() { seen = append(seen, "acknowledged") })
	testutil.EqualSlices(t, seen,
		[]string{"first QP_REQ_ERR", "second QP_REQ_ERR", "acknowledged"}, "order")
}

func BenchmarkPollEmpty(b *testing.B) {
	s := newStub()
	defer s.Free()
	c := s.cq()
	wcs := make([]verbs.WC, 32)
	for b.Loop() {
		_, _ = c.Poll(wcs)
	}
}

func BenchmarkPoll32(b *testing.B) {
	s := newStub()
	defer s.Free()
	c := s.cq()
	wcs := make([]verbs.WC, 32)
	for b.Loop() {
		s.Complete(32)
		_, _ = c.Poll(wcs)
	}
}

func BenchmarkPostSend1(b *testing.B)  { benchmarkPostSend(b, 1) }
func BenchmarkPostSend32(b *testing.B) { benchmarkPostSend(b, 32) }

func benchmarkPostSend(b *testing.B, n int) {
	s := newStub()
	defer s.Free()
	q := s.qp()
	wrs, sges := sendBatch(n)
	s.Room(1 << 40)
	for b.Loop() {
		_, _ = q.PostSend(wrs, sges)
	}
}

func BenchmarkPostRecv32(b *testing.B) {
	s := newStub()
	defer s.Free()
	q := s.qp()
	wrs := recvBatch(32)
	s.Room(1 << 40)
	for b.Loop() {
		_, _ = q.PostRecv(wrs)
	}
}

func TestAddr(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"192.0.2.1:4420", "192.0.2.1:4420"},
		{"0.0.0.0:1", "0.0.0.0:1"},
		{"[::]:65535", "[::]:65535"},
		{"[2001:db8::1]:0", "[2001:db8::1]:0"},
		{"[::ffff:192.0.2.1]:5", "192.0.2.1:5"},
		{"[fe80::1%lo]:4420", "[fe80::1%lo]:4420"},
		{"[fe80::1%1]:4420", "[fe80::1%lo]:4420"},
		{"[fe80::1%99999]:1", "[fe80::1%99999]:1"},
	} {
		a, err := toC(netip.MustParseAddrPort(c.in))
		testutil.MustEqual(t, err, nil, "%s", c.in)
		got := fromC(&a)
		testutil.True(t, got.String() == c.want, "%s became %v, want %s", c.in, got, c.want)
	}
	if a, err := toC(netip.AddrPort{}); err != nil || a.valid != 0 || fromC(&a).IsValid() {
		t.Errorf("no address became %v, %v", fromC(&a), err)
	}
	_, err := toC(netip.MustParseAddrPort("[fe80::1%nosuchif0]:1"))
	testutil.Is(t, err, unix.EADDRNOTAVAIL, "an unknown interface")
	testutil.True(t, strings.Contains(err.Error(), "nosuchif0"),
		"address with an unknown interface: %v", err)
}

func TestErrors(t *testing.T) {
	err := fail("ibv_reg_mr", unix.ENOMEM, "of %d bytes on %s", 4096, "rxe0")
	testutil.True(t, errors.Is(err, unix.ENOMEM) && !errors.Is(err, verbs.ErrNoDevice),
		"%v is not ENOMEM alone", err)
	want := "ibv_reg_mr of 4096 bytes on rxe0: cannot allocate memory (the limit on locked memory"
	testutil.True(t, strings.HasPrefix(err.Error(), want), "error %q, want %q...", err, want)
	err = noDevice(fail("rdma_bind_addr", unix.EADDRNOTAVAIL, "10.0.0.1:4420"), unix.ENODEV,
		unix.EADDRNOTAVAIL)
	testutil.True(t, errors.Is(err, unix.EADDRNOTAVAIL) && errors.Is(err, verbs.ErrNoDevice) &&
		strings.Contains(err.Error(), "no RDMA device"), "%v is not EADDRNOTAVAIL and ErrNoDevice",
		err)
	err = noDevice(fail("rdma_bind_addr", unix.EADDRINUSE, ""), unix.ENODEV)
	testutil.True(t, !errors.Is(err, verbs.ErrNoDevice), "%v is ErrNoDevice", err)
	testutil.Equal(t, fail("rdma_listen", 0, ""), nil, "errno 0 is an error")
}
