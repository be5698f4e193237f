package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestDamagedAndRefused: commands that are refused and whose data is damaged too are answered once
// each, and nothing of them stays (CVE-2026-64534, CVE-2026-64535).
func TestDamagedAndRefused(t *testing.T) {
	tg := serve(t, options{})
	c := tg.connect(t, pdu.Params{HeaderDigest: true, DataDigest: true}, 4, 0)
	sqe := rw(0x55, 0, 0, 4096, true)
	for i := range 1000 {
		sqe.SetCID(uint16(i))
		b := c.capsule(&sqe, random(i, 4096))
		b[len(b)-1-i%4096] ^= 1
		c.send(b)
		if cqe := (*pdu.CapsuleResp)(c.recv().raw).CQE(); cqe.CID() != uint16(i) ||
			cqe.Status().OK() {
			t.Fatalf("command %d: CID %d, %v", i, cqe.CID(), cqe.Status())
		}
	}
	again := tg.connect(t, pdu.Params{HeaderDigest: true, DataDigest: true}, 4, 0)
	again.readBlocks(1, 0, 4096)
	c.readBlocks(2, 0, 4096)
	if n := tg.free(); n != 16<<20 {
		t.Errorf("%d bytes of the arena are free", n)
	}
	sqe = rw(nvme.NVMWrite, 3, 0, 512, true)
	c.send(c.capsule(&sqe, random(1, 512)))
	c.status(3, nvme.Success)
}
