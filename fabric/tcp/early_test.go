package tcp

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestH2CDataBeforeConnect: data right after ICResp, when no command can have asked for any (CVE-2026-22998).
func TestH2CDataBeforeConnect(t *testing.T) {
	tg := serve(t, options{})
	for _, ttag := range []uint16{0, 1, 1 << ttagBits, 0xFFFE, 0xFFFF} {
		for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
			c := tg.dial(t)
			c.icReq(p)
			c.send(c.h2cData(pdu.LastPDU, 0, ttag, 0, random(0, 512)))
			c.term(sequence)
		}
	}
	eventually(t, "all connections gone", func() bool { return tg.t.Connections() == 0 })
	if n := tg.d.executed.Load(); n != 0 {
		t.Errorf("%d commands executed", n)
	}
}

// TestH2CDataBeforeR2T: data for a write that waits for memory, and for one whose R2T has not left yet, is not taken, even if the host
// guesses the transfer tag (CVE-2026-89968).
func TestH2CDataBeforeR2T(t *testing.T) {
	for name, tt := range map[string]struct {
		o     options
		reach func(h *hand, c *client)
		state requestState
	}{
		"waiting for memory": {options{}, func(h *hand, c *client) {
			h.exhaust()
			sqe := rw(nvme.NVMWrite, 3, 0, 65536, false)
			h.send(c.capsule(&sqe, nil))
		}, requestWaiting},
		"R2T blocked": {options{lend: true}, moments["R2T blocked"], requestGranting},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, tt.o)
			c := h.connect(pdu.Params{}, 8)
			tt.reach(h, c)
			var early *request
			for _, r := range h.queue().reqs {
				if r.state == tt.state {
					early = r
				}
			}
			if early == nil {
				t.Fatal("no command is in the state that is to be tested")
			}
			ttag := early.ttag
			if tt.state == requestWaiting { // the tag that it will have
				ttag = early.Tag | (early.round%ttagRounds+1)<<ttagBits
			}
			h.send(c.h2cData(pdu.LastPDU, early.SQE.CID(), ttag, 0, random(0, 512)))
			said := h.drain()
			const term = pdu.TermReqSize + pdu.DataSize // it ends with the header of the H2CData
			if len(said) < term || (*pdu.TermReq)(said[len(said)-term:]).Fault() != sequence {
				t.Errorf("the target said %d bytes, which do not end with a C2HTermReq %v", len(said), sequence)
			}
			if n := h.d.written.Load(); n != 0 {
				t.Errorf("%d writes executed", n)
			}
			h.close()
		})
	}
}

// TestEveryPartialSend: wherever the socket stops taking bytes, in a header, in data or in a digest, the next send goes on with the byte
// that follows.
func TestEveryPartialSend(t *testing.T) {
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true, HPDA: 5}} {
		h := newHand(t, options{hold: true})
		c := h.connect(p, 8)
		for i, n := range []int{512, 1024} {
			sqe := rw(nvme.NVMRead, uint16(i), i*4096, n, false)
			sqe.SetNSID(holdNSID)
			h.send(c.capsule(&sqe, nil))
		}
		h.d.release() // the responses wait for the next turn
		q := h.queue()
		whole := h.sendFrom(q, 0)
		if want := 2*(p.PDO(pdu.DataSize, p.HPDA)+p.DataDigestSize()+pdu.CapsuleRespSize+p.HeaderDigestSize()) + 512 + 1024; len(whole) != want {
			t.Fatalf("%d bytes, want %d", len(whole), want)
		}
		for left := range whole {
			if got := h.sendFrom(q, left); !bytes.Equal(got, whole[left:]) {
				t.Fatalf("digests %v: after %d bytes %d others follow, want the %d of the rest", p.DataDigest, left, len(got), len(whole)-left)
			}
		}
		q.sent = 0
		h.turn()
		if got := h.recv(); !bytes.Equal(got, whole) {
			t.Errorf("digests %v: another stream in the end", p.DataDigest)
		}
		h.close()
	}
}

// sendFrom sends what is queued as if left bytes of it had left already, and returns what arrives. The queue still believes the old.
func (h *hand) sendFrom(q *queue, left int) []byte {
	h.tb.Helper()
	q.sent = left
	want, _ := q.gather(false)
	n, e := q.transmit(false)
	clear(h.g.iov)
	if n != want || e != 0 {
		h.tb.Fatalf("%d of %d bytes were sent, %v", n, want, e)
	}
	b := make([]byte, n)
	if m, e := sys.Recv(h.peer, b, 0); m != n || e != 0 {
		h.tb.Fatalf("%d of %d bytes arrived, %v", m, n, e)
	}
	return b
}

// TestEveryAlignment: every HPDA that a host may ask for works (P08); read checks where the data begins.
func TestEveryAlignment(t *testing.T) {
	tg := serve(t, options{})
	for hpda := range uint8(32) {
		for _, digests := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d,digests=%v", hpda, digests), func(t *testing.T) {
				c := tg.connect(t, pdu.Params{HeaderDigest: digests, DataDigest: digests, HPDA: hpda}, 4, 0)
				for i, n := range []int{512, 4096} {
					got := c.readBlocks(uint16(i), 1024, n)
					for j := range got {
						if got[j] != pattern(1024+j) {
							t.Fatalf("byte %d of %d is %#x, want %#x", j, n, got[j], pattern(1024+j))
						}
					}
				}
			})
		}
	}
}
