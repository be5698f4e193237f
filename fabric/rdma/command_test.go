package rdma

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// piece is a part of the host's data buffer.
type piece struct{ off, n int }

// listed makes a command with its data in pieces, and the list for the capsule at off.
func (q *hostQueue) listed(s nvme.SQE, off int, pieces []piece) (nvme.SQE, []byte) {
	list := make([]byte, off)
	for _, p := range pieces {
		var d nvme.SGLDescriptor
		d.SetKeyed(nvme.SGLSubtypeAddress, mem.Addr(q.buf[p.off:]), uint32(p.n), q.mr.RKey())
		list = append(list, d[:]...)
	}
	s.SGL1().SetData(nvme.SGLLastSegment, nvme.SGLSubtypeOffset, uint64(off), uint32(len(list)-off))
	return s, list
}

// scatter returns unordered pieces with gaps between them.
func scatter(sizes ...int) (p []piece, total int) {
	at := 6 << 20
	for _, n := range sizes {
		at -= n + 100
		p = append(p, piece{at, n})
		total += n
	}
	return p, total
}

func TestLists(t *testing.T) {
	cases := map[string][]int{
		"one block": {4096}, "pages": {4096, 4096}, "odd": {1, 4095, 8192, 3},
		"empty blocks": {0, 512, 0, 0, 513, 0},
		"16":           {512, 1, 512, 2, 512, 3, 512, 4, 512, 5, 512, 6, 512, 7, 512, 8},
		"large":        {300 << 10, 1, 700 << 10, 100},
	}
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, ioParam(8))
		for name, sizes := range cases {
			pieces, n := scatter(sizes...)
			want := pattern(n, len(sizes))
			rest := want
			for _, p := range pieces {
				rest = rest[copy(q.buf[p.off:p.off+p.n], rest):]
			}
			s, list := q.listed(command(opWrite, 1, 0, uint32(n)), 32, pieces)
			if st := q.do(s, list); !st.OK() || !bytes.Equal(b.h.Region.Bytes()[:n], want) {
				t.Errorf("%s: write: %v", name, st)
			}
			clear(q.buf)
			s, list = q.listed(command(opRead, 1, 0, uint32(n)), 0, pieces)
			if st := q.do(s, list); !st.OK() {
				t.Errorf("%s: read: %v", name, st)
			}
			var got []byte
			for _, p := range pieces {
				got = append(got, q.buf[p.off:p.off+p.n]...)
				clear(q.buf[p.off : p.off+p.n])
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: other data came back", name)
			}
			if slices.ContainsFunc(q.buf, func(b byte) bool { return b != 0 }) {
				t.Errorf("%s: data beside its place", name)
			}
		}
	})
}

// With a send queue and READ depth smaller than the pieces of a command, the pieces go out in
// parts.
func TestListsInParts(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b := newHarness(t, o)
		p := ioParam(2)
		p.reads = 1
		q := b.host.connect(b.addr(), p)
		pieces, n := scatter(512, 512, 100, 512, 512, 4000, 512, 512, 512, 1, 512, 7000)
		want := pattern(n, 5)
		rest := want
		for _, p := range pieces {
			rest = rest[copy(q.buf[p.off:p.off+p.n], rest):]
		}
		for _, op := range []nvme.Opcode{opWrite, opZeroCopyWrite} {
			b.h.Region.Bytes()[0]++
			s, list := q.listed(command(op, 1, 0, uint32(n)), 0, pieces)
			if st := q.do(s, list); !st.OK() || !bytes.Equal(b.h.Region.Bytes()[:n], want) {
				t.Errorf("write: %v", st)
			}
		}
		slices.Reverse(pieces)
		for _, op := range []nvme.Opcode{opRead, opZeroCopyRead} {
			clear(q.buf)
			s, list := q.listed(command(op, 1, 0, uint32(n)), 0, pieces)
			st := q.do(s, list)
			var got []byte
			for _, p := range pieces {
				got = append(got, q.buf[p.off:p.off+p.n]...)
			}
			if !st.OK() || !bytes.Equal(got, want) {
				t.Errorf("read: %v", st)
			}
		}
	})
}

func TestListsRefused(t *testing.T) {
	_, q := joined(t, harnessOptions{}, ioParam(8))
	pieces, _ := scatter(512, 512)
	base, list := q.listed(command(opRead, 1, 0, 1024), 0, pieces)
	with := func(off uint64, n uint32) nvme.SQE {
		s := base
		s.SGL1().SetData(nvme.SGLLastSegment, nvme.SGLSubtypeOffset, off, n)
		return s
	}
	second := func(typ nvme.SGLType, sub byte) []byte {
		l := slices.Clone(list)
		l[31] = byte(typ)<<4 | sub
		return l
	}
	many, manyList := q.listed(command(opRead, 1, 0, 17), 0, make([]piece, 17))
	tests := []struct {
		name string
		sqe  nvme.SQE
		data []byte
		want nvme.Status
	}{
		{"good", base, list, nvme.Success},
		{"offset beyond", with(4097, 32), list, nvme.SGLOffsetInvalid},
		{"offset huge", with(1<<64-16, 32), list, nvme.SGLOffsetInvalid},
		{"no descriptor", with(0, 0), list, nvme.InvalidSGLSegment},
		{"part of a descriptor", with(0, 24), list, nvme.InvalidSGLSegment},
		{"more than was sent", with(0, 48), list, nvme.InvalidSGLSegment},
		{"beyond the capsule", with(4080, 32), list, nvme.InvalidSGLSegment},
		{"huge", with(0, 1<<32-16), list, nvme.InvalidSGLSegment},
		{"too many", many, manyList, nvme.InvalidSGLCount},
		{"segment inside", base, second(nvme.SGLSegment, 1), nvme.InvalidSGLSegment},
		{"last segment inside", base, second(nvme.SGLLastSegment, 1), nvme.InvalidSGLSegment},
		{"data block inside", base, second(nvme.SGLDataBlock, 1), nvme.SGLTypeInvalid},
		{"bit bucket inside", base, second(nvme.SGLBitBucket, 0), nvme.SGLTypeInvalid},
		{"subtype inside", base, second(nvme.SGLKeyedDataBlock, 1), nvme.SGLTypeInvalid},
	}
	for _, tt := range tests {
		want := tt.want
		if !want.OK() {
			want |= nvme.DNR
		}
		testutil.Equal(t, q.do(tt.sqe, tt.data), want, "%s", tt.name)
	}
}

// The admin queue has no in-capsule data, so no lists either.
func TestListsOnTheAdminQueue(t *testing.T) {
	_, q := joined(t, harnessOptions{}, adminParam())
	s := command(opRead, 1, 0, 512)
	s.SGL1().SetData(nvme.SGLLastSegment, nvme.SGLSubtypeOffset, 0, 16)
	testutil.Equal(t, q.do(s, nil), nvme.InvalidSGLSegment|nvme.DNR, "")
}

// The response to a list invalidates one key that the host asked for.
func TestListInvalidate(t *testing.T) {
	_, q := joined(t, harnessOptions{}, ioParam(8))
	r := testutil.Value(mem.Map("test host", 4096))(t)
	mr := testutil.Value(q.pd.RegMR(r.Bytes(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite))(t)
	var own, other nvme.SGLDescriptor
	own.SetKeyed(nvme.SGLSubtypeInvalidate, mem.Addr(r.Bytes()), 512, mr.RKey())
	other.SetKeyed(nvme.SGLSubtypeAddress, mem.Addr(q.buf), 512, q.mr.RKey())
	s := command(opRead, 1, 0, 1024)
	s.SGL1().SetData(nvme.SGLLastSegment, nvme.SGLSubtypeOffset, 0, 32)
	q.send(&s, slices.Concat(own[:], other[:]))
	cqe, wc, ok := q.response()
	testutil.True(t, ok && cqe.Status().OK() && wc.Flags&verbs.WCWithInv != 0 &&
		wc.InvalidatedRKey == mr.RKey(), "%v, %+v", cqe.Status(), wc)
	testutil.Check(t, errors.Join(mr.Dereg(), r.Unmap()))
}

func TestListsAllocateNothing(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(8))
	pieces, n := scatter(512, 100, 4096)
	s, list := m.host.listed(command(opRead, 1, 0, uint32(n)), 0, pieces)
	round := func() {
		m.host.send(&s, list)
		m.turn()
		m.turn()
		m.host.response()
	}
	round()
	testutil.Equal(t, testutil.AllocsPerRun(50, round), 0, "allocations per command")
}

func TestMSDBD(t *testing.T) {
	for inCapsule, want := range map[int]int{0: 1, 16: 1, 64: 4, 4096: 16, 65536: 16} {
		testutil.Equal(t, msdbd(inCapsule), want, "blocks with %d bytes in a capsule", inCapsule)
	}
}

// FuzzParseSGL: for any capsule, in-capsule data lies within the received bytes, and only keyed
// data blocks lead to the host's memory.
func FuzzParseSGL(f *testing.F) {
	var d nvme.SGLDescriptor
	f.Add(d[:], []byte{})
	d.SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 1<<64-1, 1<<32-1)
	f.Add(d[:], make([]byte, 4096))
	d.SetKeyed(nvme.SGLSubtypeInvalidate, 1, 2, 3)
	f.Add(d[:], []byte{1})
	keyed := slices.Clone(d[:])
	d.SetData(nvme.SGLLastSegment, nvme.SGLSubtypeOffset, 0, 32)
	f.Add(d[:], append(keyed, keyed...))
	region := testutil.Value(mem.Map("test", 8192))(f)
	f.Cleanup(func() { testutil.Check(f, region.Unmap()) })
	q := &queue{icd: 4096, g: &group{}, p: &poller{dev: &device{}}}
	q.recv, q.own.shift = &q.own, 16
	q.own.slabs = []*slab{{region: region, inCapsule: 4096, stride: 4096, icd: 4096}}
	data := region.Bytes()[4096:]
	f.Fuzz(func(t *testing.T, b, came []byte) {
		var r request
		copy(r.SQE.SGL1()[:], b)
		inCapsule := uint32(copy(data, came))
		q.parseSGL(&r, inCapsule)
		keyed := r.SQE.SGL1().Type() == nvme.SGLKeyedDataBlock
		switch {
		case !r.Status.OK() &&
			(r.HostLength != 0 || r.InCapsule || r.invalidate || r.blocks != nil):
			t.Fatalf("%v describes %d bytes", r.Status, r.HostLength)
		case r.InCapsule &&
			(keyed || r.HostLength == 0 || r.addr+uint64(r.HostLength) > uint64(inCapsule)):
			t.Fatalf("%d bytes from %d of %d that came", r.HostLength, r.addr, inCapsule)
		case r.HostLength > 0 && !r.InCapsule && !keyed && r.blocks == nil, r.invalidate &&
			!keyed && r.blocks == nil:
			t.Fatalf("descriptor %x leads to the host's memory", r.SQE.SGL1()[:])
		}
		if r.blocks == nil || r.HostLength > 1<<20 {
			return
		}
		// The work requests cover the list exactly.
		r.Segs = []mem.Segment{
			{B: make([]byte, r.HostLength/2)},
			{B: make([]byte, r.HostLength-r.HostLength/2)},
		}
		r.Segs = slices.DeleteFunc(r.Segs, func(s mem.Segment) bool { return len(s.B) == 0 })
		r.rewind()
		n, left := q.addWRs(&r, verbs.WRRDMARead, 2, 1<<20), r.HostLength
		for _, wr := range q.g.wrs {
			if wr.NumSGE == 0 || wr.NumSGE > 2 {
				t.Fatalf("a work request of %d elements", wr.NumSGE)
			}
			for _, s := range q.g.sges[wr.FirstSGE : wr.FirstSGE+wr.NumSGE] {
				left -= s.Length
			}
		}
		q.g.wrs, q.g.sges = q.g.wrs[:0], q.g.sges[:0]
		if left != 0 || r.data.Segment() != nil {
			t.Fatalf("%d work requests leave %d of %d bytes", n, left, r.HostLength)
		}
	})
}

// TestInCapsuleOffsets: data at an offset is used if it lies within the capsule, and refused
// otherwise (CVE-2026-72129).
func TestInCapsuleOffsets(t *testing.T) {
	b, q := joined(t, harnessOptions{}, ioParam(32))
	st := q.do(command(opConnect, 1, 32, 0), nil)
	testutil.MustTrue(t, st.OK(), "%v", st)
	const size, n = 4096, 512
	full := pattern(size, 3)
	offsets := []int{size - n - 1, size - n, size - n + 1, size - 1, size, size + 1}
	for off := 0; off < size; off += 61 {
		offsets = append(offsets, off)
	}
	for _, off := range offsets {
		s := command(opWrite, uint16(off), 0, n)
		s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, uint64(off), n)
		want := nvme.Success
		switch {
		case off > size:
			want = nvme.SGLOffsetInvalid | nvme.DNR
		case off+n > size:
			want = nvme.DataSGLLengthInvalid | nvme.DNR
		}
		testutil.MustEqual(t, q.do(s, full), want, "offset %d", off)
		testutil.MustTrue(t, !want.OK() || bytes.Equal(b.h.Region.Bytes()[:n], full[off:off+n]),
			"offset %d: other data arrived", off)
	}
}
