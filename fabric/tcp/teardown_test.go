package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// moments are states of a queue at its end. Each leaves the commands it needs outstanding.
var moments = map[string]func(h *manual, c *client){
	"idle":            func(*manual, *client) {},
	"header":          func(h *manual, c *client) { h.send(c.connectPDU(1, 4, 0)[:50]) },
	"in-capsule data": func(h *manual, c *client) { h.send(c.inCapsule(1, 0, 4096, 0)[:2000]) },
	"R2T":             func(h *manual, c *client) { h.send(c.request(nvme.NVMWrite, 1, 0, 65536)) },
	"H2CData": func(h *manual, c *client) {
		h.send(c.request(nvme.NVMWrite, 1, 0, 65536))
		ttag := (*pdu.Data)(h.recv()).TTAG()
		h.send(c.H2CData(0, 1, ttag, 0, random(0, 5000))[:3000])
	},
	"executing": func(h *manual, c *client) {
		for i := range 4 {
			sqe := rw([]nvme.Opcode{nvme.NVMWrite, nvme.NVMRead}[i%2], uint16(i), 0, 4096, i%2 == 0)
			sqe.SetNSID(holdNSID)
			h.send(c.Capsule(&sqe, random(0, 4096*(1-i%2))))
		}
	},
	"responses blocked": func(h *manual, c *client) {
		h.narrow()
		for i := range 3 {
			h.send(c.request(nvme.NVMRead, uint16(i), 0, 1<<20))
		}
	},
	"R2T blocked": func(h *manual, c *client) {
		h.narrow()
		for i := range 4 {
			h.send(c.request([]nvme.Opcode{nvme.NVMRead, nvme.NVMWrite}[i/3], uint16(i), 0, 1<<20))
		}
	},
	"waiting for memory": func(h *manual, c *client) {
		for i := range 4 {
			h.send(c.request(nvme.NVMWrite, uint16(i), 0, 2<<20))
		}
	},
	"stalled": func(h *manual, c *client) {
		h.exhaust()
		h.send(c.inCapsule(1, 0, 4096, 0))
	},
}

// ends are the ways to end a queue.
var ends = map[string]func(h *manual, c *client){
	"hang-up":    func(h *manual, _ *client) { h.hangUp() },
	"disconnect": func(h *manual, _ *client) { h.queue().Disconnect(errors.New("test")); h.turn() },
	"shutdown": func(h *manual, _ *client) {
		h.g.Shutdown(func() {})
		h.turn()
	},
	"fault": func(h *manual, _ *client) { h.send(bytes.Repeat([]byte{0xFF}, 100000)) },
	"timeout": func(h *manual, _ *client) {
		h.loop.advance(time.Minute)
		h.turn()
	},
	"unwatched death": func(h *manual, _ *client) { h.queue().kill(errors.New("test")); h.turn() },
}

// narrow makes the socket take less than a response of a megabyte.
func (h *manual) narrow() {
	testutil.Must(h.tb, unix.SetsockoptInt(h.queue().fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 64<<10))
}

func (h *manual) queue() *queue { return h.g.queues.At(0) }

// drain takes everything that the target sends, though the socket takes little at a time.
func (h *manual) drain() (all []byte) {
	for idle := 0; idle < 2; idle++ {
		if b := h.recv(); len(b) > 0 {
			all, idle = append(all, b...), 0
		}
		for q := range h.g.queues.All() {
			q.event(unix.EPOLLOUT)
		}
		h.turn()
	}
	return all
}

// exhaust takes all memory of the arena until the end of the test.
func (h *manual) exhaust() {
	segs, ok := h.arena.Alloc(nil, h.arena.Available())
	testutil.MustTrue(h.tb, ok, "the arena does not give all it has")
	h.taken = segs
}

// In any state and for any kind of end everything comes back once, including requests that the
// handler has, early or late.
func TestTeardown(t *testing.T) {
	for moment, reach := range moments {
		for how, end := range ends {
			for _, late := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,%s,late=%v", moment, how, late), func(t *testing.T) {
					h, c := joined(t, options{zeroCopy: true, hold: true}, pdu.Params{}, 8)
					reach(h, c)
					if !late {
						h.d.Release()
					}
					end(h, c)
					h.turn()
					h.close()
				})
			}
		}
	}
}

// A response completed by the handler before Disconnect still leaves. Then the stream ends, and the
// handler is told at once.
func TestDisconnectSendsWhatIsQueued(t *testing.T) {
	h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
	h.send(c.held(nvme.NVMRead, 1, 0, 4096))
	h.queue().Disconnect(errors.New("test"))
	h.d.Release()
	h.turn()
	if got, want := len(h.recv()), pdu.DataSize+4096+pdu.CapsuleRespSize; got != want {
		t.Errorf("%d bytes arrived, want %d", got, want)
	}
	testutil.Equal(t, h.d.Closed.Load(), 1, "the session is still open")
	testutil.Equal(t, h.t.Usage().Connections, 1,
		"the connection was closed before the host could read")
	h.loop.advance(2 * time.Second)
	h.turn()
	testutil.Equal(t, h.t.Usage().Connections, 0, "the connection lingers for ever")
	h.close()
}

// A command with an R2T that leaves when the queue has already ended is given up, once.
func TestDisconnectBeforeR2T(t *testing.T) {
	h, c := joined(t, options{zeroCopy: true}, pdu.Params{}, 8)
	moments["R2T blocked"](h, c)
	h.queue().Disconnect(errors.New("test"))
	h.turn()
	testutil.MustTrue(t, h.d.Abandoned.Load() == 0 && h.d.Closed.Load() == 0,
		"the socket took more than it should")
	total := 0
	for h.d.Closed.Load() == 0 {
		total += len(h.recv())
		h.queue().event(unix.EPOLLOUT)
		h.turn()
	}
	total += len(h.recv())
	want := 3*(pdu.DataSize+1<<20+pdu.CapsuleRespSize) + pdu.DataSize
	testutil.True(t, total == want, "%d bytes arrived, want %d", total, want)
	testutil.Equal(t, h.d.Abandoned.Load(), 1, "commands abandoned")
	h.close()
}

// A zero copy of a host that has stopped reading ends within two ticks, since writers may wait for
// the memory, and the host still gets its data. Without memory for a copy it does not end.
func TestCopyUnsent(t *testing.T) {
	for _, exhausted := range []bool{false, true} {
		h, c := joined(t, options{zeroCopy: true, arena: 8 << 20}, pdu.Params{}, 8)
		if exhausted {
			h.exhaust()
		}
		moments["responses blocked"](h, c)
		h.loop.advance(300 * time.Millisecond)
		if n := h.d.Ended.Load(); n != 0 {
			t.Errorf("zero copy of %d reads ended before the host had a chance to read", n)
		}
		h.loop.advance(300 * time.Millisecond)
		h.turn()
		if want := map[bool]int64{false: 3, true: 0}[exhausted]; h.d.Ended.Load() != want {
			t.Errorf("memory exhausted %v: zero copy of %d reads ended, want %d", exhausted,
				h.d.Ended.Load(), want)
		}
		if !exhausted {
			clear(h.d.Region.Bytes()) // a write
		}
		total, first := 0, []byte(nil)
		for idle := 0; idle < 2; idle++ {
			if b := h.recv(); len(b) > 0 {
				first, idle = append(first, b...), 0
				total += len(b)
			}
			h.queue().event(unix.EPOLLOUT)
			h.turn()
		}
		want := 3 * (pdu.DataSize + 1<<20 + pdu.CapsuleRespSize)
		testutil.MustTrue(t, total == want, "%d bytes arrived, want %d", total, want)
		for i := range 1 << 20 {
			testutil.MustEqual(t, first[total-pdu.CapsuleRespSize-1<<20+i], pattern(i),
				"byte %d of the last command", i)
		}
		h.close()
	}
}

// TestCopyUnsentInSteps: a step copies a bounded part of this data, for all queues together.
func TestCopyUnsentInSteps(t *testing.T) {
	for _, reads := range []struct{ size, count int }{{128 << 10, 12}, {1 << 20, 1}} {
		h := newManual(t, options{zeroCopy: true, arena: 8 << 20})
		var peers [2]int
		for i := range peers {
			c := h.connect(pdu.Params{}, 32)
			peers[i] = h.peer
			testutil.Must(t, unix.SetsockoptInt(h.g.queues.At(i).fd, unix.SOL_SOCKET,
				unix.SO_SNDBUF, 64<<10))
			for k := range reads.count {
				h.send(c.request(nvme.NVMRead, uint16(k), 0, reads.size))
			}
		}
		most, before := 0, 0
		step := func(do func()) {
			do()
			copied := 0
			for q := range h.g.queues.All() {
				for r := range q.sendq.All() {
					copied += int(r.placed)
				}
			}
			most, before = max(most, copied-before), copied
		}
		for range 2 {
			step(func() { h.loop.advance(time.Duration(h.g.tick)) })
		}
		for len(h.loop.posts) > 0 || !h.g.scheduled.Empty() {
			posts := h.loop.posts
			h.loop.posts = nil
			step(func() {
				for _, post := range posts {
					post()
				}
			})
			step(func() { h.g.Poll(64) })
		}
		testutil.True(t, most == pollBytes && int(h.d.Ended.Load()) == len(peers)*reads.count,
			"%d bytes copied in a step, %d reads in all", most, h.d.Ended.Load())
		h.close(peers[:]...)
	}
}

// TestDiscardInTurns: a poll discards a bounded part of the input of queues that have ended.
func TestDiscardInTurns(t *testing.T) {
	h := newManual(t, options{})
	var peers [8]int
	for i := range peers {
		h.connect(pdu.Params{}, 4)
		peers[i] = h.peer
	}
	for q := range h.g.queues.All() {
		q.Disconnect(errors.New("test"))
	}
	h.turn()
	for _, fd := range peers {
		_, e := sys.Send(fd, make([]byte, 2*rxSize), 0)
		testutil.MustTrue(t, e == 0, "%v", e)
	}
	unread := func() (sum int) {
		for q := range h.g.queues.All() {
			sum += testutil.Value(unix.IoctlGetInt(q.fd, unix.TIOCINQ))(t)
		}
		return sum
	}
	h.g.pollEvents()
	for before := unread(); before > 0; {
		h.g.Poll(64)
		now := unread()
		testutil.MustTrue(t, before-now <= pollBytes, "%d bytes discarded in a poll", before-now)
		before = now
	}
	h.close(peers[:]...)
}

// Nothing follows a C2HTermReq, and bytes after the fault are not parsed.
func TestNothingAfterTermReq(t *testing.T) {
	h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
	h.send(c.held(nvme.NVMRead, 1, 0, 4096))
	h.send([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0})
	executed := h.d.Executed.Load()
	h.send(c.held(nvme.NVMRead, 1, 0, 4096))
	h.d.Release()
	h.turn()
	got := h.recv()
	testutil.True(t, len(got) == pdu.TermReqSize+pdu.HeaderSize &&
		(*pdu.Header)(got).Type() == pdu.TypeC2HTermReq, "got %x", got)
	testutil.Equal(t, h.d.Executed.Load(), executed, "a command after the fault was executed")
	h.close()
}

// Commands wait for memory in order and continue when there is some. In-capsule data need not wait
// for them.
func TestMemoryPressure(t *testing.T) {
	h, c := joined(t, options{arena: 4 << 20}, pdu.Params{}, 16)
	const n = 1 << 20
	for i := range 8 {
		h.send(c.request(nvme.NVMWrite, uint16(i), 0, n))
	}
	var tags []uint16
	collect := func() {
		for b := h.recv(); len(b) > 0; b = b[(*pdu.Header)(b).PLEN():] {
			if (*pdu.Header)(b).Type() == pdu.TypeR2T {
				r := (*pdu.Data)(b)
				testutil.True(t, int(r.CCCID()) == len(tags), "R2T %d is for command %d", len(tags),
					r.CCCID())
				tags = append(tags, r.TTAG())
			}
		}
	}
	collect()
	if len(tags) != 3 { // 4 MiB less the reserve
		t.Fatalf("%d R2Ts", len(tags))
	}
	h.send(c.inCapsule(9, 2<<20, 16384, 9))
	testutil.Equal(t, h.d.Written.Load(), 1, "in-capsule data had to wait")
	for i := 0; i < 8; i++ {
		testutil.MustTrue(t, i < len(tags), "no R2T for command %d", i)
		for off := 0; off < n; off += 65536 {
			h.send(c.H2CData(0, uint16(i), tags[i], off, random(off, 65536)))
		}
		collect()
	}
	testutil.Equal(t, h.d.Written.Load(), 9, "writes")
	h.close()
}

// A connection with in-capsule data that finds no memory is read again when there is some.
func TestStall(t *testing.T) {
	h, c := joined(t, options{}, pdu.Params{}, 16)
	h.exhaust()
	var all []byte
	for i := range 8 {
		all = append(all, c.inCapsule(uint16(i), i*8192, 8192, i)...)
	}
	h.send(all)
	testutil.MustTrue(t, h.d.Written.Load() == 0 && h.queue().stalled(), "the queue is not stalled")
	testutil.True(t, h.g.Arm(), "a stalled queue keeps the reactor awake")
	h.giveBack()
	h.turn()
	testutil.Equal(t, h.d.Written.Load(), 8, "writes")
	h.close()
}

// Neither wait lasts forever: the command fails so that the host retries, and the data of a stalled
// connection is discarded.
func TestMemoryDeadline(t *testing.T) {
	h, c := joined(t, options{cfg: Config{MemoryTimeout: time.Second}}, pdu.Params{}, 16)
	h.exhaust()
	h.send(c.request(nvme.NVMRead, 1, 0, 4096))
	expire := func() {
		t.Helper()
		h.loop.advance(2 * time.Second)
		h.turn()
		b := h.recv()
		testutil.True(t, len(b) == pdu.CapsuleRespSize &&
			(*pdu.CapsuleResp)(b).CQE().Status() == nvme.CommandInterrupted, "got %x", b)
	}
	expire()
	for range 2 {
		h.send(c.inCapsule(1, 0, 4096, 0))
		testutil.True(t, h.queue().stalled(), "the queue is not stalled")
		expire()
	}
	testutil.True(t, h.t.Usage().Connections == 1 && h.d.Written.Load() == 0 && h.g.stalled == 0,
		"the connection has ended, or data was written without memory")
	h.close()
}

// A queue that the handler refuses is closed.
func TestOpenRefused(t *testing.T) {
	h := newManual(t, options{})
	h.d.Refuse = errors.New("no room")
	h.open()
	r := pdu.ICReq(&pdu.Params{}, 1)
	h.send(r[:])
	b := h.recv()
	testutil.True(t, len(b) == 0, "got %x", b)
	h.close()
}

// After Shutdown nothing is adopted.
func TestAdoptAfterShutdown(t *testing.T) {
	h := newManual(t, options{})
	h.open()
	done := false
	h.g.Shutdown(func() { done = true })
	h.turn()
	h.hangUp()
	testutil.True(t, done, "Shutdown did not report")
	c := &conn{t: h.t, fd: -1}
	testutil.Must(t, c.admit())
	testutil.True(t, h.g.Adopt(fabric.Conn(c)) != nil, "adopted")
	h.close()
}

// A peer that has received a C2HTermReq and does not close its side delays Shutdown no longer than
// any other peer does.
func TestShutdownAfterFault(t *testing.T) {
	h := newManual(t, options{})
	h.open()
	h.send(make([]byte, 128))
	b := h.recv()
	testutil.MustTrue(t, len(b) >= pdu.HeaderSize && (*pdu.Header)(b).Type() == pdu.TypeC2HTermReq,
		"got %x", b)
	done := false
	h.g.Shutdown(func() { done = true })
	h.turn()
	testutil.MustTrue(t, !done, "the connection does not linger")
	h.loop.advance(orderlyLinger + time.Duration(h.g.tick))
	h.turn()
	testutil.True(t, done, "Shutdown waits for the peer")
	h.close()
}

// The queue waits for the response of an executing command, but not forever.
func TestDisconnectWaitsForExecuting(t *testing.T) {
	for _, completes := range []bool{true, false} {
		h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
		h.send(c.held(nvme.NVMRead, 1, 0, 4096))
		h.queue().Disconnect(errors.New("test"))
		h.turn()
		testutil.True(t, h.d.Closed.Load() == 0 && len(h.recv()) == 0, "the end did not wait")
		if completes {
			h.d.Release()
			h.turn()
			if got, want := len(h.recv()), pdu.DataSize+4096+pdu.CapsuleRespSize; got != want {
				t.Errorf("%d bytes arrived, want %d", got, want)
			}
		} else {
			h.loop.advance(2 * time.Second)
			h.turn()
		}
		testutil.Equal(t, h.d.Closed.Load(), 1, "the session is still open")
		h.close()
	}
	h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
	h.queue().setAdmin(true)
	h.send(c.held(nvme.NVMRead, 1, 0, 4096))
	h.queue().Disconnect(errors.New("test"))
	h.turn()
	testutil.Equal(t, h.d.Closed.Load(), 1, "an admin queue waits for what may never complete")
	h.close()
}

// TestHandlerKnowsFirst: a host does not see that the target has ended its connection before the
// handler knows: the host may repeat writes that devices still have.
func TestHandlerKnowsFirst(t *testing.T) {
	for name, end := range map[string]func(*queue){
		"killed":            func(q *queue) { q.kill(errors.New("test")) },
		"bad record of TLS": func(q *queue) { q.tls = secured(t, q.g); q.tlsFailed() },
	} {
		h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
		h.send(c.held(nvme.NVMRead, 1, 0, 4096))
		end(h.queue())
		for open := true; open; h.g.Poll(64) {
			_, e := sys.Recv(h.peer, h.in, 0)
			open = e == unix.EAGAIN
			testutil.MustTrue(t, open || h.d.Closed.Load() == 1, "%s: the handler does not know",
				name)
		}
		h.close()
	}
}

// secured returns TLS after a handshake.
func secured(t *testing.T, g *Group) *tls.Conn {
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
	testutil.Must(t, g.makeTLSBuffers())
	key := testutil.Value(auth.NewTLSKey(auth.SHA256))(t)
	psks := testutil.Value(key.PSKs("nqn.2026-11.io.nvmf-target:host",
		"nqn.2026-11.io.nvmf-target:disk0"))(t)
	client := testutil.Value(tls.NewClient(&psks[0]))(t)
	defer client.Free()
	server := tls.NewServer(func([]byte) []auth.TLSPSK { return psks })
	defer server.Free()
	for b := []byte(nil); ; {
		out, c, err := client.Step(b)
		testutil.Must(t, err)
		if c != nil {
			c.Close()
		}
		b, c, err = server.Step(out)
		testutil.Must(t, err)
		if c != nil {
			return c
		}
	}
}

// TestManyEnd: however many connections end together, a poll ends only a few of them.
func TestManyEnd(t *testing.T) {
	for _, disconnected := range []bool{false, true} {
		h := newManual(t, options{})
		const connections, most = 60, pollBytes / endCost
		var peers []int
		for range connections {
			h.connect(pdu.Params{}, 8)
			peers = append(peers, h.peer)
		}
		for q := range h.g.queues.All() {
			if disconnected {
				q.Disconnect(errShutdown)
			}
		}
		for _, fd := range peers {
			_ = unix.Close(fd)
		}
		h.peer = -1
		for last, polls := int64(0), 0; last < connections; polls++ {
			h.g.Poll(64)
			now := h.d.Closed.Load()
			testutil.MustTrue(t, now-last <= most && polls < 1000,
				"%d connections end in a poll, %d in %d", now-last, now, polls)
			last = now
		}
		h.close()
	}
}

// A connection may be evicted at any stage, and gives everything back.
func TestEvict(t *testing.T) {
	reason := errors.New("test")
	adopt := func(h *manual, c *conn) { testutil.Must(t, h.g.Adopt(c)) }
	ic := pdu.ICReq(&pdu.Params{}, 1)
	for name, run := range map[string]func(h *manual, c *conn){
		"before Adopt": func(h *manual, c *conn) {
			c.evict(reason)
			adopt(h, c)
		},
		"before the reactor has it": func(h *manual, c *conn) {
			adopt(h, c)
			c.evict(reason)
		},
		"idle": func(h *manual, c *conn) {
			adopt(h, c)
			h.turn()
			c.evict(reason)
		},
		"in ICReq": func(h *manual, c *conn) {
			adopt(h, c)
			h.send(ic[:40])
			c.evict(reason)
		},
		"after ICReq": func(h *manual, c *conn) {
			adopt(h, c)
			h.send(ic[:])
			testutil.MustEqual(t, h.d.Opened.Load(), 1, "the handler does not know the queue")
			c.evict(reason)
		},
		"while it ends": func(h *manual, c *conn) {
			adopt(h, c)
			h.send(ic[:])
			h.send(ic[:]) // a fault: it lingers
			c.evict(reason)
		},
		"when it has ended": func(h *manual, c *conn) {
			adopt(h, c)
			h.hangUp()
			c.evict(reason)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newManual(t, options{})
			c := h.accepted()
			run(h, c)
			h.turn()
			testutil.Equal(t, h.g.queues.Len(), 0, "connections are left")
			if h.peer >= 0 {
				for { // everything sent before, and the end
					n, e := sys.Recv(h.peer, h.in, 0)
					if n == 0 && e == 0 || e == unix.ECONNRESET {
						break
					} else if e != 0 {
						t.Fatalf("the peer sees %v, not the end", e)
					}
				}
			}
			u := h.t.Usage()
			testutil.True(t, u.Connections == 0 && u.Memory == 0, "%+v", u)
			h.close()
		})
	}
}

// A flood of connections evicts the oldest ones, but no connections of hosts.
func TestFloodEvicts(t *testing.T) {
	tg, host := served(t, options{cfg: Config{Limits: admission.Limits{Connections: 64}}},
		pdu.Params{}, 4, 0)
	var strangers []*client
	for range 60 { // the budget of an allowed address is 16
		strangers = append(strangers, tg.dial(t))
	}
	for _, c := range strangers[:44] {
		c.end()
	}
	for _, c := range strangers[44:] {
		c.icReq(pdu.Params{})
	}
	host.readBlocks(1, 0, 512)
	testutil.Until(t, "the evicted connections have closed", func() bool {
		u := tg.t.Usage()
		return u.Connections == 17 && u.Unassociated == 16 && u.Evicted == 44
	})
	c := tg.connect(t, pdu.Params{}, 4, 0)
	c.readBlocks(1, 0, 512)
	strangers[44].end()
}
