package target

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// core is a real reactor with its handler.
type core struct {
	r      *reactor.Reactor
	memory *mem.Pool
	h      fabric.Handler
}

// stressHost is one host goroutine; its queues belong to reactors.
type stressHost struct {
	t      *testing.T
	cores  []*core
	rnd    *rand.Rand
	queues []*stressQueue
}

type stressQueue struct {
	c     *core
	q     *fabrictest.Queue
	ended chan struct{}
}

// errEnded says that the queue has ended, which the stress test causes.
var errEnded = errors.New("queue is ended")

func (h *stressHost) dial(c *core) *stressQueue {
	sq := &stressQueue{c: c, ended: make(chan struct{})}
	ready := make(chan error)
	c.r.Post(func() {
		q, err := fabrictest.DialOn(c.r, c.memory, c.h, info(nvme.TransportTCP))
		if err == nil {
			q.OnClose = func() { close(sq.ended) }
		}
		sq.q = q
		ready <- err
	})
	if err := <-ready; err != nil {
		h.t.Error(err)
		return nil
	}
	h.queues = append(h.queues, sq)
	return sq
}

// send sends commands and returns a channel that is closed when all are done.
func (sq *stressQueue) send(cmds ...*fabrictest.Command) <-chan struct{} {
	done := make(chan struct{})
	sq.c.r.Post(func() {
		left := len(cmds)
		for _, c := range cmds {
			c.Then = func() {
				if left--; left == 0 {
					close(done)
				}
			}
		}
		_ = sq.q.Send(cmds...)
	})
	return done
}

func (h *stressHost) do(sq *stressQueue, c *fabrictest.Command) (nvme.Status, error) {
	select {
	case <-sq.send(c):
		return c.CQE.Status(), nil
	case <-sq.ended:
		return 0, errEnded
	case <-time.After(time.Minute):
		h.t.Errorf("opcode %#x is lost", c.SQE.Opcode())
		return 0, errEnded
	}
}

// association connects, enables the controller, does I/O on several queues, and ends in some way.
func (h *stressHost) association(args connectArgs) error {
	pick := func() *core { return h.cores[h.rnd.IntN(len(h.cores))] }
	admin := h.dial(pick())
	c := args.command()
	if st, err := h.do(admin, c); err != nil || !st.OK() {
		return errors.Join(err, st)
	}
	cntlid := nvme.ConnectResult(c.CQE.DW0()).CNTLID()
	if _, err := h.do(admin,
		propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux))); err != nil {
		return err
	}
	admin.send(&fabrictest.Command{SQE: command(nvme.AdminAsyncEventReq, 0, nil).SQE})
	var io []*stressQueue
	for i := range 1 + h.rnd.IntN(4) {
		q := h.dial(pick())
		a := args
		a.qid, a.cntlid, a.sqsize = uint16(i+1), cntlid, 127
		if st, err := h.do(q, a.command()); err != nil || !st.OK() {
			return errors.Join(err, st)
		}
		io = append(io, q)
	}
	var last []<-chan struct{}
	for range 20 {
		q := io[h.rnd.IntN(len(io))]
		var batch []*fabrictest.Command
		for range 1 + h.rnd.IntN(16) {
			op := []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite}[h.rnd.IntN(2)]
			batch = append(batch,
				rw(op, uint32(1+h.rnd.IntN(3)), uint64(h.rnd.IntN(128)), 8, make([]byte, 4096)))
		}
		batch = append(batch, dsm(uint32(1+h.rnd.IntN(3)), true, [2]uint64{0, 8}, [2]uint64{64, 8}))
		last = []<-chan struct{}{q.send(batch...), q.ended}
		if h.rnd.IntN(3) == 0 {
			waitAny(last)
		}
		if h.rnd.IntN(8) == 0 {
			ab := command(nvme.AdminAbort, 0, nil)
			ab.SQE.Abort().Set(uint16(1+h.rnd.IntN(len(io))), batch[0].SQE.CID())
			if _, err := h.do(admin, ab); err != nil {
				return err
			}
		}
	}
	switch h.rnd.IntN(4) {
	case 0: // sudden death of the admin queue
		admin.c.r.Post(admin.q.HangUp)
	case 1: // reset and another try
		_, err := h.do(admin, propertySetCommand(nvme.PropertyCC, 0))
		return err
	case 2: // shutdown
		_, err := h.do(admin,
			propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux|nvme.CCShutdownNormal)))
		return err
	default: // orderly: wait for the last batch
		waitAny(last)
	}
	return nil
}

func waitAny(ch []<-chan struct{}) {
	if len(ch) == 2 {
		select {
		case <-ch[0]:
		case <-ch[1]:
		}
	}
}

// TestStress runs hosts on real reactors while namespaces are added, removed, changed and paused,
// for the race detector and the leak checks: every command of an open queue completes, and nothing
// is left at the end.
func TestStress(t *testing.T) {
	target := New(Options{Log: slog.New(slog.DiscardHandler)})
	sub := ramSubsystem(t, 2)
	extra := ramDevice(t, 1<<20, 512)
	testutil.Must(t, target.AddSubsystem(sub))
	cores, stop := startCores(t, target, 3)
	var hosts sync.WaitGroup
	for i := range 4 {
		hosts.Go(func() {
			(&stressHost{
				t: t, cores: cores,
				rnd: rand.New(rand.NewPCG(uint64(i), 7)),
			}).associations(i)
		})
	}
	hosts.Go(func() {
		for range 30 {
			third := namespaces.Config{NSID: 3, Device: extra}
			testutil.Check(t, target.AddNamespace(testSub, third))
			target.Controllers()
			target.CheckHealth()
			target.Stats()
			if err := target.UpdateNamespace(testSub, namespaces.Config{NSID: 1},
				func(old backend.Device) (backend.Device, error) { return old, nil }); err != nil {
				t.Error(err)
			}
			testutil.Check(t, target.PauseNamespace(testSub, 2))
			if _, err := target.UpdateSubsystem(subsystems.Config{
				NQN: testSub, AllowAnyHost: true, Serial: "other",
			}); err != nil {
				t.Error(err)
			}
			testutil.Check(t, target.ResumeNamespace(testSub, 2))
			gone, err := target.RemoveNamespace(testSub, 3)
			testutil.Check(t, err)
			<-gone
		}
	})
	hosts.Wait()

	testutil.Until(t, "sessions and controllers have ended", func() bool {
		return target.Sessions() == 0 && len(target.Controllers()) == 0
	})
	testutil.Check(t, target.Close())
	stop()
}

// startCores runs n reactors with handlers of target until stop is called.
func startCores(t *testing.T, target *Target, n int) (cores []*core, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range n {
		re, err := reactor.New(reactor.Config{Index: i, CPU: -1})
		testutil.Must(t, err)
		arena := testutil.Value(mem.NewArena("stress", 64<<20))(t)
		memory := mem.NewPool(arena, 0)
		h := testutil.Value(target.NewHandler(HandlerConfig{Loop: re, Index: i, Memory: memory}))(t)
		re.Attach(h)
		cores = append(cores,
			&core{
				r: re, memory: memory,
				h: fabrictest.Watch(h, func(s string) { t.Error("contract: " + s) }),
			})
		running.Go(func() {
			if err := re.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	return cores, func() {
		cancel()
		running.Wait()
		for _, c := range cores {
			testutil.Check(t, errors.Join(c.r.Close(), c.memory.Close()))
		}
	}
}

// associations goes through eight associations as the i-th host, and hangs up after each.
func (h *stressHost) associations(i int) {
	args := adminArgs(testSub)
	args.host += string(rune('a' + i))
	args.kato = 120000
	for range 8 {
		if err := h.association(args); err != nil && !errors.Is(err, errEnded) {
			h.t.Error(err)
		}
		for _, q := range h.queues {
			q.c.r.Post(q.q.HangUp)
		}
		for _, q := range h.queues {
			<-q.ended
		}
		h.queues = nil
	}
}
