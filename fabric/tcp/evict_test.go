package tcp

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
