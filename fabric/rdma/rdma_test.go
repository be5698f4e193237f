package rdma

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// both runs a test on RoCE and on iWARP.
func both(t *testing.T, fn func(t *testing.T, o harnessOptions)) {
	for name, iwarp := range map[string]bool{"roce": false, "iwarp": true} {
		if iwarp && onSoft {
			continue // has run
		}
		t.Run(name, func(t *testing.T) {
			fn(t, harnessOptions{fabric: verbstest.Options{IWARP: iwarp}})
		})
	}
}

func TestReadsAndWrites(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		_, q := joined(t, o, ioParam(32))
		for _, n := range []int{1, 512, 4096, 4097, 128 << 10, 1 << 20, 1<<20 + 512} {
			want := pattern(n, n)
			copy(q.buf, want)
			if st := q.do(q.keyed(command(opWrite, 1, 0, uint32(n)), 0, uint32(n)), nil); !st.OK() {
				t.Fatalf("write of %d bytes: %v", n, st)
			}
			clear(q.buf[:n])
			if st := q.do(q.keyed(command(opRead, 2, 0, uint32(n)), 4096, uint32(n)),
				nil); !st.OK() {
				t.Fatalf("read of %d bytes: %v", n, st)
			}
			testutil.MustTrue(t, bytes.Equal(q.buf[4096:4096+n], want), "%d bytes do not read back",
				n)
		}
		testutil.MustEqual(t, q.do(command(opNothing, 3, 0, 0), nil), nvme.Success, "no data")
	})
}

// Memory that peers can reach exists on iWARP only, and is used only as a sink of RDMA READs.
func TestWritesGoThroughStaging(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, ioParam(32))
		look := b.writesTo()
		testutil.MustEqual(t, q.do(q.keyed(command(opWrite, 1, 0, 4096), 0, 4096), nil),
			nvme.Success, "")
		arena, single := look()
		testutil.True(t, arena != o.fabric.IWARP && single, "data came to the arena %t, alone %t",
			arena, single)
	})
}

// TestIWARPThatCopies uses an iWARP device that copies data: it needs no staging memory, and no
// completions of WRITEs.
func TestIWARPThatCopies(t *testing.T) {
	b, q := joined(t, harnessOptions{
		fabric: verbstest.Options{IWARP: true},
		setup: func(f *verbstest.Fabric) {
			d := verbstest.IWARP("copies", netip.MustParseAddr("192.0.2.9"))
			d.Attr.ReadNeedsRemoteWrite, d.Attr.HoldsUnsignaledWrites = false, false
			f.AddHost("target", d)
		},
	}, ioParam(32))
	look := b.writesTo()
	testutil.MustEqual(t, q.do(q.keyed(command(opWrite, 1, 0, 4096), 0, 4096), nil),
		nvme.Success, "write")
	testutil.MustEqual(t, q.do(q.keyed(command(opRead, 2, 0, 4096), 4096, 4096), nil),
		nvme.Success, "read")
	arena, single := look()
	testutil.True(t, arena && single, "data came to the arena %t, alone %t", arena, single)
	for _, p := range b.g.pollers {
		testutil.True(t, p.staging.pool == nil && !p.signalWrites,
			"staging memory %v, signaled WRITEs %v", p.staging.pool, p.signalWrites)
	}
}

func TestInCapsuleData(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, ioParam(32))
		inCapsule := func(op nvme.Opcode, addr uint64, n uint32) nvme.SQE {
			s := command(op, 9, 0, n)
			s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, addr, n)
			return s
		}
		full := pattern(4096, 3)
		tests := []struct {
			name string
			sqe  nvme.SQE
			data []byte
			want nvme.Status
			read []byte
		}{
			{"full", inCapsule(opWrite, 0, 4096), full, nvme.Success, full},
			{"one byte", inCapsule(opWrite, 0, 1), full[:1], nvme.Success, full[:1]},
			{
				"with an offset", inCapsule(opWrite, 512, 512), full[:1024], nvme.Success,
				full[512:1024],
			},
			{"nothing", inCapsule(opNothing, 0, 0), nil, nvme.Success, nil},
			{"offset at the end", inCapsule(opNothing, 4096, 0), full, nvme.Success, nil},
			{"trailing bytes", inCapsule(opWrite, 0, 512), full, nvme.Success, full[:512]},
			{
				"offset beyond", inCapsule(opWrite, 4097, 1), full,
				nvme.SGLOffsetInvalid | nvme.DNR,
				nil,
			},
			{
				"offset huge", inCapsule(opWrite, 1<<64-1, 4096), full,
				nvme.SGLOffsetInvalid | nvme.DNR, nil,
			},
			{
				"length beyond", inCapsule(opWrite, 1, 4096), full,
				nvme.DataSGLLengthInvalid | nvme.DNR, nil,
			},
			{
				"length huge", inCapsule(opWrite, 0, 1<<32-1), full,
				nvme.DataSGLLengthInvalid | nvme.DNR, nil,
			},
			{
				"more than was sent", inCapsule(opWrite, 0, 512), full[:511],
				nvme.DataSGLLengthInvalid | nvme.DNR, nil,
			},
			{"a read", inCapsule(opRead, 0, 512), full, nvme.InvalidField | nvme.DNR, nil},
		}
		for _, tt := range tests {
			testutil.Equal(t, q.do(tt.sqe, tt.data), tt.want, "%s", tt.name)
			testutil.True(t, bytes.Equal(b.h.Region.Bytes()[:len(tt.read)], tt.read),
				"%s: other data arrived", tt.name)
		}
	})
}

func TestDescriptors(t *testing.T) {
	_, q := joined(t, harnessOptions{}, ioParam(32))
	with := func(typ, sub uint8, n uint32) nvme.SQE {
		s := command(opRead, 4, 0, n)
		s.SGL1().SetData(nvme.SGLType(typ), sub, mem.Addr(q.buf), n)
		return s
	}
	if st := q.do(with(0, 0, 0), nil); !st.OK() { // zero descriptor, no data
		t.Error(st)
	}
	keyed0 := command(opNothing, 4, 0, 0)
	keyed0.SGL1().SetKeyed(nvme.SGLSubtypeInvalidate, 0, 0, 0x1234)
	testutil.Equal(t, q.do(keyed0, nil), nvme.Success, "keyed block of length 0")
	for typ := uint8(0); typ < 16; typ++ {
		for sub := uint8(0); sub < 16; sub++ {
			if typ == 4 && (sub == 0 || sub == 0xF) || typ == 0 && sub == 1 || typ == 3 &&
				sub == 1 {
				continue
			}
			testutil.Equal(t, q.do(with(typ, sub, 512), nil), nvme.SGLTypeInvalid|nvme.DNR,
				"type %X subtype %X", typ, sub)
		}
	}
	long := q.keyed(command(opRead, 5, 0, 0xFFFFFF), 0, 0xFFFFFF)
	if st := q.do(long, nil); st != nvme.InternalError { // the arena has 4 MiB
		t.Errorf("read of 16 MiB: %v", st)
	}
}

// A failed read sends no data: the content of the buffer is not the host's.
func TestFailedReadSendsNoData(t *testing.T) {
	_, q := joined(t, harnessOptions{}, ioParam(32))
	copy(q.buf, "untouched")
	for op, want := range map[nvme.Opcode]nvme.Status{
		opReadFail: nvme.UnrecoveredReadError,
		opRefused:  nvme.InvalidOpcode | nvme.DNR,
	} {
		testutil.Equal(t, q.do(q.keyed(command(op, 1, 0, 512), 0, 512), nil), want, "status")
	}
	testutil.True(t, bytes.HasPrefix(q.buf, []byte("untouched")), "data was sent")
}

func TestRemoteInvalidate(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		_, q := joined(t, o, ioParam(32))
		for _, op := range []nvme.Opcode{opRead, opWrite, opReadFail, opRefused} {
			r := testutil.Value(mem.Map("test host", 4096))(t)
			mr := testutil.Value(q.pd.RegMR(r.Bytes(),
				verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite))(t)
			for _, sub := range []uint8{nvme.SGLSubtypeAddress, nvme.SGLSubtypeInvalidate} {
				s := command(op, 1, 0, 512)
				s.SGL1().SetKeyed(sub, mem.Addr(r.Bytes()), 512, mr.RKey())
				q.send(&s, nil)
				_, wc, ok := q.response()
				testutil.MustTrue(t, ok, "opcode %#x: %+v", op, q.bad)
				asked, did := sub == nvme.SGLSubtypeInvalidate, wc.Flags&verbs.WCWithInv != 0
				if asked != did || did && wc.InvalidatedRKey != mr.RKey() {
					t.Errorf("opcode %#x: asked %v, flags %#x, key %#x of %#x", op, asked, wc.Flags,
						wc.InvalidatedRKey, mr.RKey())
				}
			}
			testutil.Must(t, errors.Join(mr.Dereg(), r.Unmap()))
		}
	})
}

// TestZeroCopy: data moves between the host and memory of the handler, before and after the device
// has registered it. On iWARP nothing is received there.
func TestZeroCopy(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, ioParam(32))
		want := pattern(12345, 1)
		move := func() {
			t.Helper()
			copy(q.buf, want)
			clear(q.buf[1<<20:])
			if st := q.do(q.keyed(command(opZeroCopyWrite, 1, 512, 12345), 0, 12345),
				nil); !st.OK() {
				t.Fatal(st)
			}
			if st := q.do(q.keyed(command(opZeroCopyRead, 1, 512, 12345), 1<<20, 12345),
				nil); !st.OK() {
				t.Fatal(st)
			}
			testutil.True(t, bytes.Equal(q.buf[1<<20:1<<20+12345], want), "other data came back")
			s := command(opZeroCopyWrite, 1, 0, 100)
			s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 100)
			if st := q.do(s, want[:100]); !st.OK() ||
				!bytes.Equal(b.h.Region.Bytes()[:100], want[:100]) {
				t.Errorf("in-capsule data: %v", st)
			}
		}
		move()
		testutil.MustTrue(t, b.registered(0), "not registered:\n%s", b.log)
		before, more := b.h.Ended.Load(), int64(2)
		if o.fabric.IWARP {
			more = 1
		}
		want = pattern(12345, 2)
		move()
		testutil.Until(t, "the ends of zero copy",
			func() bool { return b.h.Ended.Load() == before+more })
	})
}

func TestSetDepth(t *testing.T) {
	_, q := joined(t, harnessOptions{}, adminParam())
	testutil.Equal(t, q.do(command(opConnect, 1, 33, 0), nil), nvme.ConnectInvalidParameters,
		"33 commands on a queue made for 32")
	testutil.Equal(t, q.do(command(opConnect, 1, 32, 0), nil), nvme.Success, "32 commands")
}

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
			testutil.True(t, bytes.Equal(got, want), "%s: other data came back", name)
			testutil.True(t, !slices.ContainsFunc(q.buf, func(b byte) bool { return b != 0 }),
				"%s: data beside its place", name)
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
			testutil.True(t, st.OK() && bytes.Equal(got, want), "read: %v", st)
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
			testutil.MustTrue(t, wr.NumSGE != 0 && wr.NumSGE <= 2, "a work request of %d elements",
				wr.NumSGE)
			for _, s := range q.g.sges[wr.FirstSGE : wr.FirstSGE+wr.NumSGE] {
				left -= s.Length
			}
		}
		q.g.wrs, q.g.sges = q.g.wrs[:0], q.g.sges[:0]
		testutil.MustTrue(t, left == 0 && r.data.Segment() == nil,
			"%d work requests leave %d of %d bytes", n, left, r.HostLength)
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

// invalidated sends a read with a key that may be invalidated, and reports whether it was. ok is
// false if the queue failed.
func (q *hostQueue) invalidated() (did, ok bool) {
	t := q.t
	t.Helper()
	r := testutil.Value(mem.Map("test host", 4096))(t)
	mr := testutil.Value(q.pd.RegMR(r.Bytes(),
		verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite))(t)
	s := command(opRead, 1, 0, 512)
	s.SGL1().SetKeyed(nvme.SGLSubtypeInvalidate, mem.Addr(r.Bytes()), 512, mr.RKey())
	q.send(&s, nil)
	_, wc, ok := q.response()
	testutil.Must(t, errors.Join(mr.Dereg(), r.Unmap()))
	return wc.Flags&verbs.WCWithInv != 0, ok
}

// A device that takes SEND_WITH_INV and gets stuck on it, as soft iWARP does, or fails it: one
// queue ends, and the next ones work.
func TestInvalidateFoundOut(t *testing.T) {
	for name, fault := range map[string]verbstest.Fault{
		"stuck":  {Host: "target", Ops: verbstest.OpSend, Hold: true},
		"failed": {Host: "target", Ops: verbstest.OpSend, Fail: verbs.WCLocQPOpErr},
	} {
		t.Run(name, func(t *testing.T) {
			b, q := joined(t, harnessOptions{}, ioParam(8))
			b.f.Inject(fault)
			s := command(opRead, 1, 0, 512)
			s.SGL1().SetKeyed(nvme.SGLSubtypeInvalidate, mem.Addr(q.buf), 512, q.mr.RKey())
			q.send(&s, nil)
			if fault.Hold {
				b.stick()
			}
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q = b.host.connect(b.addr(), ioParam(8))
			did, ok := q.invalidated()
			testutil.True(t, !did && ok, "afterwards: invalidated %v, answered %v", did, ok)
			testutil.True(t, strings.Contains(b.log.String(), "does not invalidate"), "log:\n%s",
				b.log)
		})
	}
}

// A device on which SEND_WITH_INV has worked is not suspected when a queue ends. Nor is a device
// that has sent responses without it.
func TestInvalidateNotSuspected(t *testing.T) {
	for name, proven := range map[string]bool{"proven": true, "not used": false} {
		t.Run(name, func(t *testing.T) {
			b, q := joined(t, harnessOptions{}, ioParam(8))
			sub := uint8(nvme.SGLSubtypeAddress)
			if proven {
				sub = nvme.SGLSubtypeInvalidate
				did, ok := q.invalidated()
				testutil.MustTrue(t, did && ok, "not invalidated")
			}
			b.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpSend, Hold: true})
			s := command(opRead, 1, 0, 512)
			s.SGL1().SetKeyed(sub, mem.Addr(q.buf), 512, q.mr.RKey())
			q.send(&s, nil)
			b.stick()
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q = b.host.connect(b.addr(), ioParam(8))
			did, ok := q.invalidated()
			testutil.True(t, did && ok, "afterwards: invalidated %v, answered %v", did, ok)
		})
	}
}

// TestNothingIsRemote: a host that knows the keys and addresses of the target's memory can neither
// read, write nor invalidate it. Its queue ends, and the others continue (R14).
func TestNothingIsRemote(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, good := joined(t, o, ioParam(8))
		want := 0
		if o.fabric.IWARP {
			want = 1 // the sink of RDMA READs
		}
		testutil.Equal(t, b.f.Live("target").RemoteMRs, want, "memory regions with remote rights")
		var key uint32
		b.on(func() { key = b.g.pollers[0].data.mr.RKey() })
		arena := b.arena.Region().Bytes()
		before := bytes.Clone(arena)
		attacks := map[string]verbs.SendWR{
			"write": {Opcode: verbs.WRRDMAWrite, RemoteAddr: mem.Addr(arena), RKey: key},
			"read":  {Opcode: verbs.WRRDMARead, RemoteAddr: mem.Addr(arena), RKey: key},
		}
		if !o.fabric.IWARP {
			attacks["invalidate"] = verbs.SendWR{Opcode: verbs.WRSendWithInv, InvalidateRKey: key}
		}
		for name, wr := range attacks {
			q := b.host.connect(b.addr(), ioParam(8))
			q.sges[0] = verbs.SGE{Addr: mem.Addr(q.buf), Length: 64, LKey: q.mr.LKey()}
			wr.WRID, wr.Flags, wr.NumSGE = 1<<32, verbs.SendSignaled, 1
			q.swrs[0] = wr
			testutil.Value(q.qp.PostSend(q.swrs[:], q.sges[:1]))(t)
			if _, wc, ok := q.response(); ok {
				t.Errorf("%s: %+v", name, wc)
			}
			if name != "read" { // it does not leave the host: the target serves none
				b.host.event(verbs.EventDisconnected)
			}
			q.free()
			testutil.Equal(t, good.do(good.keyed(command(opWrite, 1, 0, 512), 0, 512), nil),
				nvme.Success, "another queue after %s", name)
		}
		if !o.fabric.IWARP {
			before = before[4096:] // the data of the good queue went there
			arena = arena[4096:]
		}
		testutil.True(t, bytes.Equal(arena, before), "the memory has changed")
	})
}

// ioRound sends n commands, turns the loop and takes the responses.
func (m *manual) ioRound(sqes []nvme.SQE) {
	for i := range sqes {
		m.host.send(&sqes[i], nil)
	}
	m.turn()
	m.turn()
	m.turn()
	for range sqes {
		m.host.response()
	}
}

func TestNothingIsAllocatedPerCommand(t *testing.T) {
	for name, iwarp := range map[string]bool{"roce": false, "iwarp": true} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, verbstest.Options{IWARP: iwarp}, Config{}, ioParam(32))
			m.q.p.dev.attr.WritesFirst = !iwarp
			var sqes []nvme.SQE
			for i := range 32 {
				op := []nvme.Opcode{opRead, opWrite, opZeroCopyRead, opNothing}[i%4]
				s := m.host.keyed(command(op, uint16(i), 0, 4096), i*4096, 4096)
				if op == opWrite && i%8 == 1 {
					s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 0)
					s.SetCDW(12, 0)
				}
				sqes = append(sqes, s)
			}
			m.ioRound(sqes)
			testutil.Equal(t, testutil.AllocsPerRun(50, func() { m.ioRound(sqes) }), 0,
				"allocations in 32 commands")
		})
	}
}
