package verbsconf

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// churner is one machine of testChurn: an event goroutine that passes events to the goroutine of
// their connection.
type churner struct {
	t   *testing.T
	s   *Setup
	cm  verbs.CM
	pd  verbs.PD
	cq  verbs.CQ
	new func(verbs.Event) // for connection requests

	mu  sync.Mutex
	ids map[verbs.ID]chan verbs.EventType
}

func (c *churner) run() {
	for {
		ev, err := c.cm.Next()
		if err != nil {
			return
		}
		if ev.Type == verbs.EventConnectRequest {
			c.add(ev.ID)
			c.new(ev)
			continue
		}
		c.mu.Lock()
		if ch := c.ids[ev.ID]; ch != nil {
			ch <- ev.Type
		}
		c.mu.Unlock()
	}
}

func (c *churner) add(id verbs.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[id] = make(chan verbs.EventType, 16)
}

// wait waits for the next event of a connection.
func (c *churner) wait(id verbs.ID, limit time.Duration) (verbs.EventType, bool) {
	c.mu.Lock()
	ch := c.ids[id]
	c.mu.Unlock()
	select {
	case ev := <-ch:
		return ev, true
	case <-time.After(limit):
		return 0, false
	}
}

func (c *churner) check(err error, what string) {
	if err != nil {
		c.t.Errorf("%s: %v", what, err)
	}
}

// device makes the objects that the connections of a machine share, once.
func (c *churner) device(d verbs.Device) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pd != nil {
		return
	}
	var err error
	c.pd, err = d.AllocPD()
	c.check(err, "AllocPD")
	c.cq, err = d.CreateCQ(256, nil, 0)
	c.check(err, "CreateCQ")
}

func (c *churner) qp(id verbs.ID) (verbs.QP, error) {
	c.device(id.Device())
	return id.CreateQP(c.pd,
		verbs.QPInit{
			SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1,
			MaxRecvSGE: 1,
		})
}

// free frees a connection in any state.
func (c *churner) free(id verbs.ID, qp verbs.QP) {
	if qp != nil {
		c.check(qp.Destroy(), "destroy QP")
	}
	c.check(id.Destroy(), "destroy ID")
	c.mu.Lock()
	delete(c.ids, id)
	c.mu.Unlock()
}

// active makes a connection and ends it at a random stage.
func (c *churner) active(to netip.AddrPort, rnd *rand.Rand) {
	id, err := c.cm.NewID()
	if err != nil {
		c.t.Errorf("NewID: %v", err)
		return
	}
	c.add(id)
	var qp verbs.QP
	defer func() { c.free(id, qp) }()
	stop := rnd.IntN(8)
	step := func(n int, err error, want verbs.EventType) bool {
		if err != nil || stop == 2*n {
			return false // a soft iWARP device refuses at once
		}
		ev, ok := c.wait(id, c.s.Timeout)
		if !ok {
			c.t.Errorf("active side: no event, want %v", want)
		}
		return ev == want && stop != 2*n+1
	}
	if !step(0, id.ResolveAddr(netip.AddrPort{}, to, c.s.Timeout), verbs.EventAddrResolved) ||
		!step(1, id.ResolveRoute(c.s.Timeout), verbs.EventRouteResolved) {
		return
	}
	if qp, err = c.qp(id); err != nil {
		c.t.Errorf("CreateQP: %v", err)
		return
	}
	if step(2, id.Connect(params("churn")), verbs.EventEstablished) && stop == 6 {
		c.check(id.Disconnect(), "Disconnect")
	}
}

// passive handles a connection request in a random way.
func (c *churner) passive(id verbs.ID, choice int) {
	var qp verbs.QP
	defer func() { c.free(id, qp) }()
	switch choice {
	case 0:
		return
	case 1:
		_ = id.Reject([]byte("no")) // as below
		return
	}
	var err error
	if qp, err = c.qp(id); err == nil {
		err = id.Accept(params("churn"))
	}
	if err != nil {
		return // the active side may have ended
	}
	// The CM may take minutes to notice that a peer has disappeared.
	for limit := time.Now().Add(2 * time.Second); ; {
		ev, ok := c.wait(id, time.Until(limit))
		if !ok || ev != verbs.EventEstablished {
			break
		}
		if choice == 2 {
			break
		}
	}
	_ = id.Disconnect()
}

// sync waits until the event goroutine has handled every event so far. It uses an event of its own
// for that.
func (c *churner) sync() {
	id, err := c.cm.NewID()
	if err != nil {
		c.t.Errorf("NewID: %v", err)
		return
	}
	c.add(id)
	c.check(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(c.s.AddrA, 1), c.s.Timeout),
		"ResolveAddr")
	_, ok := c.wait(id, c.s.Timeout)
	testutil.True(c.t, ok, "no event")
	c.free(id, nil)
}

// testChurn makes and breaks connections from several goroutines, at every stage, while events of
// them arrive.
func testChurn(t *testing.T, s *Setup) {
	const workers, rounds = 6, 20
	var passives sync.WaitGroup
	make := func(p verbs.Provider) *churner {
		cm := testutil.Value(p.NewCM())(t)
		return &churner{t: t, s: s, cm: cm, ids: map[verbs.ID]chan verbs.EventType{}}
	}
	p, a := make(s.A), make(s.B)
	n := 0
	p.new = func(ev verbs.Event) {
		n++
		choice := n % 5
		passives.Go(func() { p.passive(ev.ID, choice) })
	}
	var loops sync.WaitGroup
	loops.Go(p.run)
	loops.Go(a.run)
	l := testutil.Value(p.cm.Listen(s.addr(), 64, 0))(t)
	var actives sync.WaitGroup
	for w := range workers {
		actives.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for range rounds {
				a.active(l.Local(), rnd)
			}
		})
	}
	actives.Wait()
	p.check(l.Destroy(), "destroy listener")
	p.sync()
	passives.Wait()
	for _, c := range []*churner{p, a} {
		c.check(c.cq.Destroy(), "destroy CQ")
		c.check(c.pd.Dealloc(), "free PD")
		c.check(c.cm.Close(), "close CM")
	}
	loops.Wait()
	testutil.True(t, n != 0, "no request came through")
}
