package target

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fused makes a half of a fused pair: FUSE is 1 or 2.
func fused(op nvme.Opcode, fuse uint8, slba uint64, data []byte) *fabrictest.Command {
	c := rw(op, 1, slba, max(1, uint32(len(data)/512)), data)
	c.SQE.SetFlags(psdtSGL<<6 | fuse)
	return c
}

// pairOf makes a fused Compare and Write.
func pairOf(slba uint64, old, data []byte) []*fabrictest.Command {
	return []*fabrictest.Command{
		fused(nvme.NVMCompare, 1, slba, old), fused(nvme.NVMWrite, 2, slba, data),
	}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

// TestFusedNamespaceGoes: a pair that waits for its lock ends when its namespace is removed, and
// goes on when the device of the namespace is exchanged.
func TestFusedNamespaceGoes(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r, h := joined(t, 3, 2, sub)
	zero, one := fill(0, 512), fill(1, 512)
	begin := func(old, data []byte) (early *fabrictest.Command, p []*fabrictest.Command) {
		dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
		early = r.send(h.io[1], rw(nvme.NVMWrite, 1, 8, 1, old))
		r.until("the device has a write", func() bool { return dev.Held() == 1 })
		p = pairOf(8, old, data)
		r.must(h.io[0].Send(p...))
		r.w.Settle()
		return early, p
	}
	for _, q := range h.io { // opens the channels
		r.ok(q, rw(nvme.NVMWrite, 1, 8, 1, zero))
	}
	_, p := begin(zero, one)
	x := r.startExchange(sub.Namespaces[0])
	dev.Release()
	r.until("the device has nothing", func() bool { return len(x.old) > 0 })
	r.must(x.end(<-x.old, nil))
	r.until("the pair completes", func() bool { return p[1].Done })
	if a, b := p[0].CQE.Status(), p[1].CQE.Status(); !a.OK() || !b.OK() {
		t.Errorf("with an exchange of the device: %v, %v", a, b)
	}
	early, p := begin(one, zero)
	_, err := r.target.RemoveNamespace(testSub, 1)
	r.must(err)
	dev.Release()
	for _, c := range append(p, early) {
		r.until("all complete", func() bool { return c.Done })
	}
	testutil.Equal(t, early.CQE.Status(), nvme.Success, "a write before the removal")
}
