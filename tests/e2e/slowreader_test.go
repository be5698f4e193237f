package e2e

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// ioWire connects I/O queue qid of a controller, on which a test sends its own bytes.
func (h *harness) ioWire(c *host.Controller, qid uint16, size int) *wire {
	h.t.Helper()
	w := h.wire()
	h.must(w.SetReadBuffer(4096))
	o := variant{}.hostOptions()
	op := host.ConnectCommand(qid, size, &o, c.CNTLID())
	op.SQE.SetFlags(1 << 6)
	op.SQE.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, nvme.ConnectDataSize)
	var capsule pdu.CapsuleCmd
	capsule.Set(&w.p, nvme.ConnectDataSize)
	*capsule.SQE() = op.SQE
	w.write(append(append(greeting(), capsule[:]...), op.Data...))
	w.take(pdu.TypeICResp)
	if st := (*pdu.CapsuleResp)(w.take(pdu.TypeCapsuleResp)).CQE().Status(); !st.OK() {
		h.t.Fatalf("I/O queue %d: %v", qid, st)
	}
	return w
}

// readAndWait sends reads of 1 MiB of namespace 1, one after the other, and takes none of the data.
func (w *wire) readAndWait(from, n int) {
	w.t.Helper()
	var all []byte
	for i := range n {
		var c pdu.CapsuleCmd
		c.Set(&w.p, 0)
		op := new(host.Op)
		op.Read(1, uint64(from+i)<<20>>9, 1<<20>>9, nil)
		op.SQE.SetFlags(1 << 6)
		op.SQE.SetCID(uint16(i))
		op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 1<<20)
		*c.SQE() = op.SQE
		all = append(all, c[:]...)
	}
	w.write(all)
}

// TestSlowReaders: hosts that do not take what they read of a namespace in memory do not stop the
// writes of another host to the same blocks, although there is no memory to copy the data to.
func TestSlowReaders(t *testing.T) {
	h := newHarness(t, options{memory: 16})
	victim := h.connect(plain[0])
	q := h.open(victim, 1, 32)
	ctx := testContext(t)
	const size = 64 << 20
	for off := 0; off < size; off += 1 << 20 {
		h.must(q.Write(ctx, 1, uint64(off>>9), 1<<20>>9, h.buffer(victim, 1<<20), 0))
	}
	culprit := h.connect(plain[0])
	for i := range 4 {
		h.ioWire(culprit, uint16(i+1), 32).readAndWait(i*16, 16)
	}
	h.ping(culprit)
	b := h.buffer(victim, 4096)
	var longest time.Duration
	began := time.Now()
	for off := 0; off < size; off += 16 << 10 {
		start := time.Now()
		if err := q.Write(ctx, 1, uint64(off>>9), 8, b, 0); err != nil {
			t.Fatalf("a write at %d after %v: %v", off, time.Since(start), err)
		}
		longest = max(longest, time.Since(start))
	}
	t.Logf("%d writes within %v, the longest %v", size>>14, time.Since(began), longest)
	if longest > time.Second {
		t.Errorf("a write took %v", longest)
	}
}
