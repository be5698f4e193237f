package tcp

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// set returns b with one byte changed.
func set(b []byte, at int, v byte) []byte {
	b = bytes.Clone(b)
	b[at] = v
	return b
}

// set32 returns b with four bytes changed.
func set32(b []byte, at int, v uint32) []byte {
	b = bytes.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], v)
	return b
}

var (
	sequence = pdu.Fault{FES: pdu.FESSequence}
	limit    = pdu.Fault{FES: pdu.FESLimit, FEI: pdu.OffPLEN}
)

func newRecorder() (*ratelog.Recorder, options) {
	r := ratelog.NewRecorder(slog.DiscardHandler)
	return r, options{cfg: Config{Log: slog.New(r)}}
}

// TestHostileLog: any number of bad PDUs leaves a few log lines.
func TestHostileLog(t *testing.T) {
	var log testutil.Log
	tg := serve(t, options{cfg: Config{Log: log.Logger()}})
	for range 100 {
		c := tg.dial(t)
		c.send(random(77, 128))
		c.term(pdu.Fault{FES: pdu.FESInvalidHeader, FEI: pdu.OffType})
	}
	testutil.Until(t, "all connections ended", func() bool { return tg.t.Usage().Connections == 0 })
	n := strings.Count(log.String(), "level=WARN")
	// Ten in as many seconds, each with a count of dropped lines.
	testutil.True(t, n > 0 && n <= 40, "%d lines", n)
}

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
	c.P.InCapsule = 1 << 20
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
		switch m := c.recv(); m.Type {
		case pdu.TypeR2T:
			tags = append(tags, (*pdu.Data)(m.Raw).TTAG())
		case pdu.TypeCapsuleResp:
			responses++
		}
	}
	c.send(c.H2CData(pdu.LastPDU, 1, tags[1], 0, random(0, 512)),
		c.H2CData(pdu.LastPDU, 1, tags[0], 0, random(0, 512)))
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
		b := c.Capsule(&sqe, random(i, 4096))
		b[len(b)-1-i%4096] ^= 1
		c.send(b)
		if cqe := (*pdu.CapsuleResp)(c.recv().Raw).CQE(); cqe.CID() != uint16(i) ||
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

func (tg *target) free() (n int) {
	tg.do(func() { n = tg.arena.Available() })
	return n
}

// TestH2CDataBeforeR2T: data for a write that waits for memory, or with its R2T not yet sent, is
// not accepted, even if the host guesses the transfer tag (CVE-2026-89968).
func TestH2CDataBeforeR2T(t *testing.T) {
	for name, tt := range map[string]struct {
		o     options
		reach func(h *manual, c *client)
		state requestState
	}{
		"waiting for memory": {options{}, func(h *manual, c *client) {
			h.exhaust()
			h.send(c.request(nvme.NVMWrite, 3, 0, 65536))
		}, requestWaiting},
		"R2T blocked": {options{zeroCopy: true}, moments["R2T blocked"], requestGranting},
	} {
		t.Run(name, func(t *testing.T) {
			h, c := joined(t, tt.o, pdu.Params{}, 8)
			tt.reach(h, c)
			var early *request
			for _, r := range h.queue().reqs {
				if r.state == tt.state {
					early = r
				}
			}
			testutil.MustTrue(t, early != nil, "no command is in the state that is to be tested")
			ttag := early.ttag
			if tt.state == requestWaiting { // its future tag
				ttag = early.tag | (early.round%ttagRounds+1)<<ttagBits
			}
			h.send(c.H2CData(pdu.LastPDU, early.SQE.CID(), ttag, 0, random(0, 512)))
			said := h.drain()
			const term = pdu.TermReqSize + pdu.DataSize // it ends with the header of the H2CData
			if len(said) < term || (*pdu.TermReq)(said[len(said)-term:]).Fault() != sequence {
				t.Errorf("the target said %d bytes, which do not end with a C2HTermReq %v",
					len(said), sequence)
			}
			testutil.Equal(t, h.d.Written.Load(), 0, "writes executed")
			h.close()
		})
	}
}
