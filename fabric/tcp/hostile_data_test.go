package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
			h.send(c.h2cData(pdu.LastPDU, early.SQE.CID(), ttag, 0, random(0, 512)))
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
