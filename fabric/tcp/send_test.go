package tcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A queue that takes turns with others sends only its share in its turn, and continues in the next.
func TestTurnOfOutput(t *testing.T) {
	for _, reads := range []struct{ size, count, most int }{
		{4 << 10, 127, turnVectors / 2},
		{128 << 10, 8, sendMost / (128 << 10)},
	} {
		t.Run(fmt.Sprint(reads.size), func(t *testing.T) {
			h, c := joined(t, options{}, pdu.Params{}, 128)
			busy := h.peer
			h.connect(pdu.Params{}, 4)
			q := h.g.queues.At(0)
			_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
			h.g.turnsUntil = h.loop.now + recent
			h.g.activate(q)
			var batch []byte
			for i := range reads.count {
				b := c.request(nvme.NVMRead, uint16(i), i*reads.size, reads.size)
				batch = append(batch, b...)
			}
			n, err := sys.Send(busy, batch, 0)
			testutil.MustTrue(t, n == len(batch) && err == 0, "%v %v", n, err)
			before := q.sentBytes
			h.g.Poll(64)
			sent := int(q.sentBytes - before)
			if q.blocked {
				t.Skipf("the socket takes no more than %d bytes", sent)
			}
			each := pdu.DataSize + reads.size + pdu.CapsuleRespSize
			testutil.True(t, sent != 0 && sent <= reads.most*each,
				"%d bytes in a turn beside another queue, want at most %d reads of %d", sent,
				reads.most, each)
			h.loop.now += 2 * recent
			h.hangUp()
			all := sent
			for h.peer = busy; len(h.recv()) > 0; all = int(q.sentBytes - before) {
				h.turn()
			}
			testutil.Equal(t, all, reads.count*each, "bytes in all")
			h.close()
		})
	}
}

// TestInputBesideOutput: a command is received soon, however much other queues have to send.
func TestInputBesideOutput(t *testing.T) {
	const reads, size = 40, 1 << 20
	h, c := joined(t, options{zeroCopy: true}, pdu.Params{}, 128)
	h.d.Piece = size
	q, busy := h.queue(), h.peer
	_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
	other := h.connect(pdu.Params{}, 4)
	var batch []byte
	for i := range reads {
		batch = append(batch, c.request(nvme.NVMRead, uint16(i), 0, size)...)
	}
	n, err := sys.Send(busy, batch, 0)
	testutil.MustTrue(t, n == len(batch) && err == 0, "%v %v", n, err)
	h.g.activate(q)
	h.g.Poll(64)
	testutil.MustEqual(t, h.d.Executed.Load(), reads+2, "commands, with Connect")
	flush := other.request(nvme.NVMFlush, 1, 0, 0)
	n, err = sys.Send(h.peer, flush, 0)
	testutil.MustTrue(t, n == len(flush) && err == 0, "%v %v", n, err)
	polls, b := 0, make([]byte, size)
	for ; h.d.Executed.Load() == reads+2 && !q.blocked; polls++ {
		h.g.Poll(64)
		for n := 1; n > 0; {
			n, _ = sys.Recv(busy, b, 0)
		}
	}
	testutil.True(t, polls <= 2, "%d polls", polls)
	h.hangUp()
	h.peer = busy
	h.drain()
	h.close()
}

// TestInputKeepsPlace: a queue whose input leaves its output no time keeps its place among queues
// that send.
func TestInputKeepsPlace(t *testing.T) {
	h := newManual(t, options{})
	h.connect(pdu.Params{}, 4)
	busy := h.peer
	h.connect(pdu.Params{}, 4)
	first, second := h.g.queues.At(0), h.g.queues.At(1)
	first.schedule()
	second.schedule()
	h.g.inTurn = pollBytes
	h.g.serve(first)
	testutil.True(t, h.g.scheduled.First() == first, "another one is first")
	h.close(h.peer, busy)
}

// TestLargeReadInSteps: a step gathers, digests and sends a bounded part of a large read.
func TestLargeReadInSteps(t *testing.T) {
	const size = 4*sendMost - 1024
	h, c := joined(t, options{hold: true}, pdu.Params{DataDigest: true}, 8)
	h.send(c.held(nvme.NVMRead, 1, 0, size))
	h.d.Release()
	q := h.queue()
	r := q.sendq.First()
	whole, steps := r.wire, 0
	for ; q.sent < whole; steps++ {
		n := q.gather(false, sendMost)
		clear(h.g.iov)
		testutil.MustTrue(t, n > 0 && n <= sendMost && int(r.digested) <= q.sent+n &&
			q.sent+n <= whole, "%d bytes after %d, %d digested", n, q.sent, r.digested)
		q.sent += n
	}
	want := uint32(0)
	for _, s := range r.Segs {
		want = pdu.CRC(want, s.B)
	}
	testutil.True(t, steps == 4 && r.digested == size && r.crc == want,
		"%d steps, %d bytes digested", steps, r.digested)
	h.close()
}

// TestTurnOfSmallAndLarge: small reads before a large one make no turn longer.
func TestTurnOfSmallAndLarge(t *testing.T) {
	h, c := joined(t, options{hold: true}, pdu.Params{}, 128)
	q := h.queue()
	_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
	for i := range 71 {
		n := 4 << 10
		if i == 70 {
			n = 1 << 20
		}
		h.send(c.held(nvme.NVMRead, uint16(i), 0, n))
	}
	h.d.Release()
	before := q.sentBytes
	h.g.inTurn = 0
	q.flush()
	if sent := q.sentBytes - before; !q.blocked {
		testutil.Equal(t, sent, sendMost-sendCost, "bytes of a turn with two sends")
	}
	h.close()
}

// TestWholeReads: a poll sends whole reads of 128 KiB, also the poll that receives the commands.
func TestWholeReads(t *testing.T) {
	const depth, size = 16, 128 << 10
	h, c := joined(t, options{zeroCopy: true}, pdu.Params{}, depth)
	h.d.Piece = size
	q := h.queue()
	_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
	var batch []byte
	for i := range depth {
		batch = append(batch, c.request(nvme.NVMRead, uint16(i), 0, size)...)
	}
	h.put(h.peer, batch)
	h.g.inputFirst = true
	for q.sent == 0 && !q.blocked && h.g.Poll(64) > 0 {
	}
	testutil.True(t, q.blocked || q.sent == 0, "%d bytes of a read were sent", q.sent)
	h.drain()
	h.close()
}

// TestLargeReads: the data and digests of large reads arrive as they were, however much the socket
// takes, whether they are copied before the host takes them or not.
func TestLargeReads(t *testing.T) {
	for seed := range uint64(testutil.Rounds(10, 100)) {
		rng := rand.New(rand.NewPCG(seed, 5))
		p := pdu.Params{
			HeaderDigest: rng.IntN(2) == 0, DataDigest: rng.IntN(4) != 0, HPDA: uint8(rng.IntN(32)),
		}
		h, c := joined(t, options{zeroCopy: rng.IntN(3) != 0, arena: 16 << 20}, p, 8)
		h.d.Piece = 512 << rng.IntN(12)
		if rng.IntN(2) == 0 {
			h.narrow()
		}
		disk := bytes.Clone(h.d.Region.Bytes())
		var sizes, offs []int
		for i := range 4 {
			n := (1 + rng.IntN(2<<20>>rng.IntN(8)/blockSize)) * blockSize
			sizes = append(sizes, n)
			offs = append(offs, rng.IntN((diskSize-n)/blockSize)*blockSize)
			h.send(c.request(nvme.NVMRead, uint16(i), offs[i], n))
		}
		var in bytes.Buffer
		b := make([]byte, 256<<10)
		for idle := 0; idle < 4; idle++ {
			if n, _ := sys.Recv(h.peer, b[:1+rng.IntN(len(b))], 0); n > 0 {
				in.Write(b[:n])
				idle = 0
			}
			if rng.IntN(8) == 0 {
				h.loop.advance(time.Duration(h.g.tick))
			}
			h.queue().event(unix.EPOLLOUT)
			h.turn()
			zeroCopy := false
			for r := range h.queue().sendq.All() {
				zeroCopy = zeroCopy || r.ZeroCopy
			}
			if !zeroCopy {
				clear(h.d.Region.Bytes()) // a write
			}
		}
		c.Conn = &bufferedConn{Buffer: in}
		for i := range sizes {
			m := c.recv()
			testutil.MustTrue(t, bytes.Equal(m.Data, disk[offs[i]:offs[i]+sizes[i]]),
				"seed %d: other data of read %d", seed, i)
			c.status(uint16(i), nvme.Success)
		}
		h.close()
	}
}

// TestEveryPartialSend: when the socket stops taking bytes anywhere, in a header, in data or in a
// digest, the next send continues with the next byte.
func TestEveryPartialSend(t *testing.T) {
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true, HPDA: 5}} {
		h, c := joined(t, options{hold: true}, p, 8)
		for i, n := range []int{512, 1024} {
			h.send(c.held(nvme.NVMRead, uint16(i), i*4096, n))
		}
		h.d.Release() // the responses wait for the next turn
		q := h.queue()
		whole := h.sendFrom(q, 0)
		if want := 2*(p.PDO(pdu.DataSize, p.HPDA)+p.DataDigestSize()+pdu.CapsuleRespSize+
			p.HeaderDigestSize()) + 512 + 1024; len(whole) != want {
			t.Fatalf("%d bytes, want %d", len(whole), want)
		}
		for left := range whole {
			if got := h.sendFrom(q, left); !bytes.Equal(got, whole[left:]) {
				t.Fatalf("digests %v: after %d bytes %d others follow, want the %d of the rest",
					p.DataDigest, left, len(got), len(whole)-left)
			}
		}
		q.sent = 0
		h.turn()
		testutil.True(t, bytes.Equal(h.recv(), whole), "digests %v: another stream in the end",
			p.DataDigest)
		h.close()
	}
}

// sendFrom sends the queued data as if left bytes of it had already left, and returns the bytes
// that arrive. The queue keeps its old state.
func (h *manual) sendFrom(q *queue, left int) []byte {
	h.tb.Helper()
	q.sent = left
	want := q.gather(false, sendMost)
	n, e := q.transmit()
	clear(h.g.iov)
	testutil.MustTrue(h.tb, n == want && e == 0, "%d of %d bytes were sent, %v", n, want, e)
	b := make([]byte, n)
	if m, e := sys.Recv(h.peer, b, 0); m != n || e != 0 {
		h.tb.Fatalf("%d of %d bytes arrived, %v", m, n, e)
	}
	return b
}

// TestEveryAlignment: every HPDA that a host may request works (P08). read checks the offset of the
// data.
func TestEveryAlignment(t *testing.T) {
	tg := serve(t, options{})
	for hpda := range uint8(32) {
		for _, digests := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d,digests=%v", hpda, digests), func(t *testing.T) {
				c := tg.connect(t,
					pdu.Params{HeaderDigest: digests, DataDigest: digests, HPDA: hpda}, 4, 0)
				for i, n := range []int{512, 4096} {
					got := c.readBlocks(uint16(i), 1024, n)
					for j := range got {
						testutil.MustEqual(t, got[j], pattern(1024+j), "byte %d of %d", j, n)
					}
				}
			})
		}
	}
}

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
	tg := serve(t, options{cfg: Config{
		Limits: admission.Limits{Memory: 291 << 10}, Log: log.Logger(),
	}})
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
