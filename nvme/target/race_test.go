package target

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// claims are the controllers that hosts have at the moment.
type claims struct {
	mu   sync.Mutex
	held map[uint16]bool
}

// take reports whether the identifier was free.
func (c *claims) take(id uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.held[id] = true }()
	return !c.held[id]
}

func (c *claims) give(id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, id)
}

// TestRaceForTheLastController: hosts on three reactors compete for the two controllers of a
// subsystem (Q10). No identifier is used twice at a time, and each host gets one again and again.
func TestRaceForTheLastController(t *testing.T) {
	target := New(Options{Log: slog.New(slog.DiscardHandler)})
	sub := ramSubsystem(t, 1)
	sub.CNTLIDMin, sub.CNTLIDMax = 7, 8
	testutil.Must(t, target.AddSubsystem(sub))
	cores, stop := startCores(t, target, 3)
	var hosts sync.WaitGroup
	c := &claims{held: map[uint16]bool{}}
	for i := range 6 {
		hosts.Go(func() {
			(&stressHost{t: t, cores: cores, rnd: rand.New(rand.NewPCG(uint64(i), 1))}).race(i, c)
		})
	}
	hosts.Wait()
	testutil.Check(t, target.Close())
	stop()
}

// race connects and hangs up until the i-th host has had ten controllers.
func (h *stressHost) race(i int, held *claims) {
	args := adminArgs(testSub)
	args.host += string(rune('a' + i))
	won := 0
	for tries := 0; won < 10 && tries < 100_000; tries++ {
		q := h.dial(h.cores[tries%len(h.cores)])
		c := args.command()
		st, err := h.do(q, c)
		if err != nil || !st.OK() && st.Code() != nvme.ConnectControllerBusy {
			h.t.Error(err, st)
			return
		}
		id := nvme.ConnectResult(c.CQE.DW0()).CNTLID()
		if st.OK() {
			won++
			testutil.True(h.t, id >= 7 && id <= 8 && held.take(id),
				"controller %d is used twice or out of range", id)
		}
		q.c.r.Post(func() {
			if st.OK() {
				held.give(id)
			}
			q.q.HangUp()
		})
		<-q.ended
	}
	testutil.True(h.t, won >= 10, "host %d got only %d controllers", i, won)
}

// TestParallelQueues: a host connects its I/O queues in parallel, as Linux does since 7.3, here
// each twice and on three reactors: of each identifier one is accepted and the other refused (F12).
func TestParallelQueues(t *testing.T) {
	target := New(Options{Log: slog.New(slog.DiscardHandler)})
	testutil.Must(t, target.AddSubsystem(ramSubsystem(t, 1)))
	cores, stop := startCores(t, target, 3)
	h := &stressHost{t: t, cores: cores}
	admin := h.dial(cores[0])
	connect := adminArgs(testSub).command()
	for _, c := range []*fabrictest.Command{
		connect,
		propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)),
	} {
		st, err := h.do(admin, c)
		testutil.MustTrue(t, err == nil && st.OK(), "%v %v", err, st)
	}
	const queues = 16
	var statuses [2 * queues]nvme.Status
	var running sync.WaitGroup
	for i := range statuses {
		q := h.dial(cores[i%3])
		running.Go(func() {
			a := adminArgs(testSub)
			a.qid, a.cntlid = uint16(i%queues+1), nvme.ConnectResult(connect.CQE.DW0()).CNTLID()
			var err error
			if statuses[i], err = h.do(q, a.command()); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	for i := range queues {
		a, b := statuses[i], statuses[i+queues]
		if b.OK() {
			a, b = b, a
		}
		testutil.True(t, a.OK() && b.Code() == nvme.CommandSequenceError, "queue %d: %v and %v",
			i+1, a, b)
	}
	for _, q := range h.queues {
		q.c.r.Post(q.q.HangUp)
		<-q.ended
	}
	testutil.Check(t, target.Close())
	stop()
}
