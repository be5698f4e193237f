package tcp

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

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
	tg, host := served(t, options{cfg: Config{MaxConnections: 64}}, pdu.Params{}, 4, 0)
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
