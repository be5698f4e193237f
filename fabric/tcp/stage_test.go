package tcp

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestStages: time counts for the stage in which the command waits. This handler does not count its
// stage, so its time counts for the response.
func TestStages(t *testing.T) {
	const ms = int64(time.Millisecond)
	read := func(h *manual, c *client, cid uint16, n int) {
		h.send(c.request(nvme.NVMRead, cid, 0, n))
	}
	later := func(h *manual, n int64) { h.loop.now += n * ms }
	for name, tc := range map[string]struct {
		do   func(h *manual, c *client)
		want [fabric.Stages]int64 // milliseconds
	}{
		"read": {func(h *manual, c *client) { read(h, c, 1, 4096) }, [fabric.Stages]int64{}},
		"slow reader": {func(h *manual, c *client) {
			h.narrow()
			read(h, c, 1, 1<<20)
			later(h, 70)
			h.recv()
		}, [fabric.Stages]int64{fabric.StageResponse: 70}},
		"in-capsule data": {func(h *manual, c *client) {
			b := c.inCapsule(1, 0, 65536, 0)
			h.send(b[:1000])
			later(h, 20)
			h.send(b[1000:30000])
			later(h, 30)
			h.send(b[30000:])
		}, [fabric.Stages]int64{fabric.StageHostData: 50}},
		"H2CData": {func(h *manual, c *client) {
			h.send(c.request(nvme.NVMWrite, 1, 0, 65536))
			ttag := (*pdu.Data)(h.recv()).TTAG()
			later(h, 5)
			h.send(c.h2cData(0, 1, ttag, 0, random(0, 5000)))
			later(h, 6)
			h.send(c.h2cData(pdu.LastPDU, 1, ttag, 5000, random(0, 65536-5000)))
		}, [fabric.Stages]int64{fabric.StageHostData: 11}},
		"memory, then H2CData": {func(h *manual, c *client) {
			h.exhaust()
			h.send(c.request(nvme.NVMWrite, 1, 0, 65536))
			later(h, 9)
			h.giveBack()
			h.turn()
			ttag := (*pdu.Data)(h.recv()).TTAG()
			later(h, 4)
			h.send(c.h2cData(pdu.LastPDU, 1, ttag, 0, random(0, 65536)))
		}, [fabric.Stages]int64{fabric.StageWait: 9, fabric.StageHostData: 4}},
		"memory for in-capsule data": {func(h *manual, c *client) {
			h.exhaust()
			h.send(c.inCapsule(1, 0, 4096, 0))
			later(h, 9)
			h.giveBack()
			h.turn()
		}, [fabric.Stages]int64{fabric.StageWait: 9}},
	} {
		h, c := joined(t, options{}, pdu.Params{}, 8)
		var sent [][fabric.Stages]int64
		h.d.OnSent = func(r *fabric.Request) { sent = append(sent, r.Stages) }
		tc.do(h, c)
		for i := range tc.want {
			tc.want[i] *= ms
		}
		testutil.True(t, len(sent) == 1 && sent[0] == tc.want, "%s: got %v, want %v", name, sent,
			tc.want)
		h.close()
	}
}
