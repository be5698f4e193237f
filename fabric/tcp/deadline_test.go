package tcp

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The deadlines before and after ICReq apply to the whole, not per byte. A connected queue has
// none.
func TestHandshakeDeadlines(t *testing.T) {
	req := pdu.ICReq(&pdu.Params{}, 1)
	for name, second := range map[string]func(h *manual, n int){
		"silent":             func(*manual, int) {},
		"one byte at a time": func(h *manual, n int) { h.send(req[n : n+1]) },
		"no Connect command": func(h *manual, n int) { h.send(req[:len(req)*max(1-n, 0)]) },
	} {
		h := newManual(t,
			options{cfg: Config{
				ICReqTimeout: time.Minute, ConnectTimeout: time.Minute,
				DataTimeout: time.Hour,
			}})
		h.open()
		n := 0
		for ; n < 100 && h.g.queues.Len() > 0; n++ {
			second(h, n)
			h.loop.advance(time.Second)
			h.turn()
		}
		testutil.True(t, n >= 59 && n <= 62, "%s: ended after %d seconds, the limit is 60", name, n)
		h.close()
	}
	h := newManual(t,
		options{cfg: Config{
			ICReqTimeout: time.Minute, ConnectTimeout: time.Minute,
			DataTimeout: time.Hour,
		}})
	h.connect(pdu.Params{}, 8)
	h.loop.advance(10 * time.Minute)
	h.turn()
	testutil.Equal(t, h.g.queues.Len(), 1, "a connected queue was ended")
	h.close()
}

// A host that does not send the requested data, or stops in the middle of a PDU, does not keep
// memory forever.
func TestDataDeadlines(t *testing.T) {
	tg := serve(t, options{cfg: Config{DataTimeout: time.Minute}})
	header, data := tg.connect(t, pdu.Params{}, 4, 0), tg.connect(t, pdu.Params{}, 4, 0)
	header.send(header.inCapsule(1, 0, 4096, 0)[:30])
	data.send(data.inCapsule(1, 0, 4096, 0)[:3000])
	granted := tg.connect(t, pdu.Params{}, 4, 0)
	granted.send(granted.request(nvme.NVMWrite, 1, 0, 8192))
	ttag := granted.r2t(1, 8192)
	granted.send(granted.H2CData(0, 1, ttag, 0, random(0, 4096)))
	testutil.Until(t, "all connections ended", func() bool {
		tg.later(time.Minute)
		return tg.t.Usage().Connections == 0
	})
	header.end()
	data.end()
	granted.end()
	testutil.Equal(t, tg.free(), 16<<20, "bytes of the arena are free")
}

// A host that does not read is disconnected, and costs no more memory than its commands.
func TestSendDeadline(t *testing.T) {
	tg, c := served(t, options{cfg: Config{SendTimeout: time.Minute}}, pdu.Params{}, 64, 0)
	for i := range 64 {
		c.send(c.request(nvme.NVMRead, uint16(i), 0, 1<<20))
	}
	testutil.Until(t, "the connection is cut", func() bool {
		tg.later(time.Minute)
		return tg.t.Usage().Connections == 0
	})
	testutil.Equal(t, tg.free(), 16<<20, "bytes of the arena are free")
}

// A host that reads slowly but steadily gets every byte, in pieces of any size.
func TestSlowReader(t *testing.T) {
	tg := serve(t, options{zeroCopy: true})
	variants(t, func(t *testing.T, p pdu.Params) {
		c := tg.connect(t, p, 32, nvme.CATTRNoFlowControl)
		const n = 1 << 20
		for i := range 16 {
			c.send(c.request(nvme.NVMRead, uint16(i), i*4096, n))
		}
		for i := range 16 {
			m := c.recv()
			d := (*pdu.Data)(m.Raw)
			testutil.MustTrue(t, m.Type == pdu.TypeC2HData && d.CCCID() == uint16(i) &&
				len(m.Data) == n && d.Header().Flags()&pdu.Success != 0, "got %v %x", m.Type, m.Raw)
			for j := 0; j < n; j += 509 {
				testutil.MustEqual(t, m.Data[j], pattern(i*4096+j),
					"command %d, byte %d is wrong", i, j)
			}
		}
		_ = c.Close()
	})
}

// TestUnreadZeroCopy: data of zero-copy reads that the host does not take is copied after two
// ticks. Without memory for that, the connection ends soon, but only if a writer waits.
func TestUnreadZeroCopy(t *testing.T) {
	for _, memory := range []bool{false, true} {
		for _, waits := range []bool{false, true} {
			h := newManual(t, options{zeroCopy: true, cfg: Config{SendTimeout: time.Minute}})
			c := h.connect(pdu.Params{}, 8)
			h.narrow()
			const n = 1 << 20
			for i := range 3 {
				h.send(c.request(nvme.NVMRead, uint16(i), i*n, n))
			}
			if !memory {
				h.exhaust()
			}
			h.d.HasWriter = waits
			ticks := int(writerWait / h.g.tick)
			advance := func(n int) {
				for range n {
					h.loop.advance(time.Duration(h.g.tick))
					h.turn()
				}
			}
			advance(ticks - 1)
			testutil.Equal(t, h.t.Usage().Connections, 1,
				"memory %v, writer %v: the connection ended at once", memory, waits)
			advance(2)
			ended := h.t.Usage().Connections == 0
			testutil.Equal(t, ended, waits && !memory, "memory %v, writer %v: ended", memory, waits)
			testutil.True(t, (h.d.Ended.Load() == 3) == (memory || ended),
				"memory %v, writer %v: %d reads ended", memory, waits, h.d.Ended.Load())
			h.close()
		}
	}
}

// TestUnsentZeroCopyWrite: a change of the namespace does not wait long for a zero-copy write, even
// if the host repeatedly sends some of its data, or does not take the R2T.
func TestUnsentZeroCopyWrite(t *testing.T) {
	for _, waits := range []bool{false, true} {
		for _, reads := range []bool{false, true} {
			h := newManual(t, options{cfg: Config{SendTimeout: time.Minute}})
			h.d.ZeroCopyWrites = true
			c := h.connect(pdu.Params{}, 8)
			if !reads {
				h.narrow()
				for i := range 3 {
					h.send(c.request(nvme.NVMRead, uint16(i), 0, 1<<20))
				}
			}
			h.send(c.request(nvme.NVMWrite, 7, 0, 1<<20))
			ttag := uint16(0)
			if reads {
				ttag = (*pdu.Data)(h.recv()).TTAG()
			}
			h.d.HasWriter = waits
			ticks := int(changeWait / h.g.tick)
			for i := range ticks + 1 {
				testutil.True(t, i != ticks-1 || h.t.Usage().Connections == 1,
					"waits %v, reads %v: the connection ended at once", waits, reads)
				h.loop.advance(time.Duration(h.g.tick))
				if h.turn(); reads && h.t.Usage().Connections == 1 {
					h.send(c.H2CData(0, 7, ttag, i*4, make([]byte, 4)))
				}
			}
			testutil.Equal(t, h.t.Usage().Connections == 0, waits, "waits %v, reads %v: ended",
				waits, reads)
			h.close()
		}
	}
}

// Each R2T has its own deadline: answering one R2T does not extend the deadlines of others.
func TestEachR2THasADeadline(t *testing.T) {
	tg, c := served(t, options{cfg: Config{DataTimeout: 10 * time.Minute}}, pdu.Params{}, 16, 0)
	ask := func(cid uint16, n int) uint16 {
		c.send(c.request(nvme.NVMWrite, cid, 0, n))
		return c.r2t(cid, n)
	}
	for cid := range uint16(8) {
		ask(cid, 1<<20)
	}
	for range 4 { // one is finished every 3 minutes
		ttag := ask(9, 4096)
		c.send(c.H2CData(0, 9, ttag, 0, random(0, 4096)))
		c.status(9, nvme.Success)
		tg.later(3 * time.Minute)
	}
	testutil.Until(t, "the connection ends", func() bool { return tg.t.Usage().Connections == 0 })
	testutil.Until(t, "its memory is back", func() bool { return tg.free() == 16<<20 })
	c.end()
}

// A host with other commands that have waited for memory for a while loses a connection without
// progress before they fail.
func TestStuckHolderEnds(t *testing.T) {
	for name, stick := range map[string]func(c *client){
		"R2T": func(c *client) {
			for cid := range uint16(14) {
				c.send(c.request(nvme.NVMWrite, cid, 0, 1<<20))
				c.r2t(cid, 1<<20)
			}
		},
		"read": func(c *client) {
			for cid := range uint16(40) { // more than the buffers of the sockets take
				c.send(c.request(nvme.NVMRead, cid, 0, 1<<20))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			tg := serve(t, options{cfg: Config{
				MemoryTimeout: 40 * time.Minute, DataTimeout: time.Hour, SendTimeout: time.Hour,
			}})
			stuck := tg.connect(t, pdu.Params{}, 64, 0)
			stick(stuck)
			waits := tg.connect(t, pdu.Params{}, 16, 0)
			testutil.Until(t, "memory is short", func() bool { return tg.free() < 4<<20 })
			waits.send(waits.request(nvme.NVMRead, 1, 0, 4<<20))
			testutil.Until(t, "the command waits", func() bool {
				short := false
				tg.do(func() { short = tg.g.cfg.Memory.HasWaiters() })
				return short
			})
			testutil.Until(t, "the sockets take no more", func() bool {
				sends := true
				tg.do(func() { sends = !tg.g.scheduled.Empty() })
				return !sends
			})
			tg.do(func() { tg.g.checkDeadlines() }) // data moved so far is no progress later
			tg.later(11 * time.Minute)
			m := waits.recv()
			testutil.True(t, m.Type == pdu.TypeC2HData && len(m.Data) == 4<<20, "got %v", m.Type)
			waits.status(1, nvme.Success)
			testutil.Until(t, "the stuck connection ends",
				func() bool { return tg.t.Usage().Connections == 1 })
		})
	}
}

// A host that makes progress keeps its connection, although all requested data takes longer than
// DataTimeout, and others wait for the memory.
func TestSlowHostThatMovesOn(t *testing.T) {
	h := newManual(t, options{arena: 16 << 20, cfg: Config{
		MaxDepth: 32, DataTimeout: 10 * time.Second, MemoryTimeout: 15 * time.Second,
	}})
	defer h.close()
	h.connect(pdu.Params{}, 32)
	c := &client{tb: t}
	for cid := range uint16(14) {
		h.send(c.request(nvme.NVMWrite, cid, 0, 1<<20))
	}
	for cid := uint16(14); cid < 17; cid++ {
		h.send(c.request(nvme.NVMRead, cid, 0, 4<<20))
	}
	var ttags []uint16
	for b := h.recv(); len(b) >= pdu.DataSize; b = b[pdu.DataSize:] {
		ttags = append(ttags, (*pdu.Data)(b).TTAG())
	}
	testutil.MustTrue(t, len(ttags) == 14 && h.g.cfg.Memory.HasWaiters(), "%d R2Ts", len(ttags))
	const part = 1 << 18
	data := random(0, part)
	for i := range 4 * len(ttags) { // 1 MiB/s
		h.loop.advance(time.Second / 4)
		h.turn()
		cid, flags := i/4, pdu.Flags(0)
		if i%4 == 3 {
			flags = pdu.LastPDU
		}
		h.send(c.H2CData(flags, uint16(cid), ttags[cid], i%4*part, data))
		h.drain()
		testutil.MustTrue(t, h.g.queues.Len() != 0, "the connection was ended after %d s", cid+1)
	}
	testutil.Equal(t, h.g.queues.At(0).requested, 0, "bytes are still requested")
}
