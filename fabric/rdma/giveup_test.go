package rdma

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestHostGivesUpWhileConnecting: a host that is gone before its connection is established leaves nothing behind, and disturbs no other
// (R10, R12).
func TestHostGivesUpWhileConnecting(t *testing.T) {
	both(t, func(t *testing.T, o benchOptions) {
		b := newBench(t, o)
		good := b.host.connect(b.addr(), ioParam(8))
		if st := good.do(command(opConnect, 1, 8, 0), nil); !st.OK() {
			t.Fatal(st)
		}
		one := b.f.Live("target")
		for range 10 {
			b.f.DropMessages("target", verbstest.MessageREP, 1)
			q := b.host.dial(b.addr(), ioParam(8))
			q.request(ioParam(8))
			b.eventually("the target waits for the host", func() (ok bool) {
				b.on(func() { ok = b.g.queues == 2 })
				return ok
			})
			q.free()
			b.f.ExpireCM()
			b.eventually("the connection is gone", func() bool { return b.tr.Connections() == 1 })
		}
		b.eventually("everything of theirs is free", func() bool { return b.f.Live("target") == one })
		if st := good.do(command(opNothing, 1, 0, 0), nil); !st.OK() {
			t.Errorf("another host: %v", st)
		}
		if n := b.h.count("execute"); n != 2 {
			t.Errorf("%d commands were executed, want the two of the other host", n)
		}
	})
}

// TestInCapsuleOffsets: data at offsets throughout the capsule is taken from there if it lies within, and refused if it does not
// (CVE-2026-72129).
func TestInCapsuleOffsets(t *testing.T) {
	b := newBench(t, benchOptions{})
	q := b.host.connect(b.addr(), ioParam(32))
	if st := q.do(command(opConnect, 1, 32, 0), nil); !st.OK() {
		t.Fatal(st)
	}
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
		if st := q.do(s, full); st != want {
			t.Fatalf("offset %d: %v, want %v", off, st, want)
		}
		if want.OK() && !bytes.Equal(b.h.store.Bytes()[:n], full[off:off+n]) {
			t.Fatalf("offset %d: other data arrived", off)
		}
	}
}
