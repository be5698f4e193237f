package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Fabrics commands use SGLs with any PSDT (Base section 4.1.2).
func TestFabricsPSDT(t *testing.T) {
	tg := serve(t, options{})
	for psdt := range byte(3) {
		c := tg.dial(t)
		c.icReq(pdu.Params{})
		connect := c.connectPDU(1, 4, 0)
		connect[8+1] = psdt << 6
		c.send(connect)
		c.status(0, nvme.Success)
	}
}

// The admin queue takes 8192 bytes in the capsule, independently of I/O queues, and no more.
func TestInCapsuleOfAdmin(t *testing.T) {
	tg := serve(t, options{cfg: Config{InCapsuleSize: 4096}})
	connect := func(qid uint16) *client {
		c := tg.dial(t)
		c.icReq(pdu.Params{})
		c.send(c.connectPDU(qid, 4, 0))
		c.status(0, nvme.Success)
		return c
	}
	c := connect(0)
	c.send(c.inCapsule(1, 0, 8192, 0))
	c.status(1, nvme.Success)
	c.p.InCapsule = 1 << 20
	c.send(c.inCapsule(1, 0, 8704, 0))
	c.term(limit)
	c = connect(1)
	c.send(c.inCapsule(1, 0, 8192, 0))
	c.term(limit)
}

// Two commands with the same identifier get one response each.
func TestDuplicateCID(t *testing.T) {
	_, c := served(t, options{}, pdu.Params{}, 8, 0)
	write := c.request(nvme.NVMWrite, 1, 0, 512)
	c.send(c.request(nvme.NVMRead, 1, 0, 512), write, write)
	var tags []uint16
	responses := 0
	for len(tags) < 2 || responses < 1 {
		switch m := c.recv(); m.t {
		case pdu.TypeR2T:
			tags = append(tags, (*pdu.Data)(m.raw).TTAG())
		case pdu.TypeCapsuleResp:
			responses++
		}
	}
	c.send(c.h2cData(pdu.LastPDU, 1, tags[1], 0, random(0, 512)),
		c.h2cData(pdu.LastPDU, 1, tags[0], 0, random(0, 512)))
	c.status(1, nvme.Success)
	c.status(1, nvme.Success)
	testutil.Equal(t, responses, 1, "responses to the read")
}

// TestDamagedAndRefused: refused commands with damaged data are answered once each, and leave
// nothing behind (CVE-2026-64534, CVE-2026-64535).
func TestDamagedAndRefused(t *testing.T) {
	recorder, o := newRecorder()
	tg, c := served(t, o, pdu.Params{HeaderDigest: true, DataDigest: true}, 4, 0)
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
	explained(t, recorder)
	again := tg.connect(t, pdu.Params{HeaderDigest: true, DataDigest: true}, 4, 0)
	again.readBlocks(1, 0, 4096)
	c.readBlocks(2, 0, 4096)
	testutil.Equal(t, tg.free(), 16<<20, "bytes of the arena are free")
	c.send(c.inCapsule(3, 0, 512, 1))
	c.status(3, nvme.Success)
}
