package tcp

import (
	"reflect"
	"strings"
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
			h.send(c.H2CData(0, 1, ttag, 0, random(0, 5000)))
			later(h, 6)
			h.send(c.H2CData(pdu.LastPDU, 1, ttag, 5000, random(0, 65536-5000)))
		}, [fabric.Stages]int64{fabric.StageHostData: 11}},
		"memory, then H2CData": {func(h *manual, c *client) {
			h.exhaust()
			h.send(c.request(nvme.NVMWrite, 1, 0, 65536))
			later(h, 9)
			h.giveBack()
			h.turn()
			ttag := (*pdu.Data)(h.recv()).TTAG()
			later(h, 4)
			h.send(c.H2CData(pdu.LastPDU, 1, ttag, 0, random(0, 65536)))
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

// Queues that do not fit into the memory are refused, a queue at its Connect and a connection at
// once. Existing queues continue, and ended ones make room.
func TestQueueMemory(t *testing.T) {
	var log testutil.Log
	tg := serve(t, options{cfg: Config{QueueMemory: 291 << 10, Log: log.Logger()}})
	a := tg.connect(t, pdu.Params{}, 100, 0) // 124 KiB
	b := tg.connect(t, pdu.Params{}, 100, 0)
	deep := tg.dial(t)
	deep.icReq(pdu.Params{})
	deep.send(deep.connectPDU(1, 100, 0))
	deep.status(0, nvme.ConnectInvalidParameters|nvme.DNR) // from the test's handler
	deep.send(deep.connectPDU(1, 2, 0))                    // this amount is left
	deep.status(0, nvme.Success)
	tg.dial(t).end()
	const reason = "3 queues have 290 KiB of memory and this one wants 16, the limit is 291"
	testutil.Until(t, "the reason is in the log",
		func() bool { return strings.Contains(log.String(), reason) })
	for i, c := range []*client{a, b, deep} {
		c.readBlocks(uint16(i), 0, 512)
	}
	_ = a.Close()
	testutil.Until(t, "there is room", func() bool { return tg.t.Usage().Memory < 167<<10 })
	tg.connect(t, pdu.Params{}, 100, 0).readBlocks(1, 0, 512)
}

// The memory counted for a command covers all memory made for it: besides the request two pointers,
// the handler's state, and the lists of segments.
func TestCommandBytes(t *testing.T) {
	if n := reflect.TypeFor[request]().Size() + 400; n > commandBytes {
		t.Errorf("%d bytes for each command, %d are counted", n, commandBytes)
	}
	if n := reflect.TypeFor[queue]().Size() + reflect.TypeFor[conn]().Size() + stalledBuffer +
		2048; n > queueBytes {
		t.Errorf("%d bytes for each queue, %d are counted", n, queueBytes)
	}
}

// Of the queues that wait for memory only the first saves all received data, and only while it
// waits.
func TestStallsSaveLittle(t *testing.T) {
	h := newManual(t, options{})
	const writes = 7
	var hosts [3]*client
	var peers [3]int
	for i := range hosts {
		hosts[i] = h.connect(pdu.Params{}, 16)
		peers[i] = h.peer
	}
	h.exhaust()
	for i, c := range hosts {
		h.peer = peers[i]
		var all []byte
		for k := range writes {
			all = append(all, c.inCapsule(uint16(k), (i*writes+k)*16384, 16384, i*writes+k)...)
		}
		h.send(all)
		if q := h.g.queues.At(i); !q.stalled() {
			t.Fatalf("queue %d is not stalled", i)
		} else if i > 0 && cap(q.partial) > stalledBuffer {
			t.Errorf("queue %d has saved %d bytes", i, cap(q.partial))
		}
	}
	n := len(h.g.queues.At(0).partial)
	testutil.True(t, n > stalledBuffer, "the first queue has saved %d bytes: nothing is tested", n)
	h.giveBack()
	h.turn()
	testutil.Equal(t, h.d.Written.Load(), int64(len(hosts)*writes), "writes")
	for i := range h.g.queues.Len() {
		q := h.g.queues.At(i)
		testutil.True(t, cap(q.partial) <= stalledBuffer, "queue %d has %d bytes saved afterwards",
			i, cap(q.partial))
	}
	h.close(peers[:]...)
}
