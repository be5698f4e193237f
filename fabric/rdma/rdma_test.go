package rdma

import (
	"bytes"
	"errors"
	"net/netip"
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
