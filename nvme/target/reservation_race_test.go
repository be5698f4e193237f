package target

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/wrap"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// rivals is how many there are.
const rivals = 3

// rival is a host that takes a namespace from others, with an I/O queue on each reactor.
type rival struct {
	*stressHost
	i  int
	io []*stressQueue
}

// TestReservationRace lets hosts take a namespace from each other on real reactors, while all of
// them write without end to a device that reorders and delays. The holder reads its own last write,
// never a late write of another host. The namespace is paused all the time, so that writes pile up
// before the device.
func TestReservationRace(t *testing.T) {
	const rounds = 40
	dev := wrap.Delay(ramDevice(t, 1<<20, 512), wrap.DelayConfig{
		Jitter: 3 * time.Millisecond, Seed: 1,
	})
	sub := ramSubsystem(t, 0)
	sub.Namespaces = []namespaces.Config{{NSID: 1, Device: dev}}
	target := New(Options{Log: slog.New(slog.DiscardHandler), Reservations: &memoryStore{}})
	testutil.Must(t, target.AddSubsystem(sub))
	cores, stop := startCores(t, target, 2)
	defer func() { // last
		testutil.Check(t, target.Close())
		stop()
	}()
	var running sync.WaitGroup
	for i := range rivals {
		h := &stressHost{t: t, cores: cores, rnd: rand.New(rand.NewPCG(uint64(i), 3))}
		v := &rival{stressHost: h, i: i}
		running.Go(func() {
			if err := v.connect(); err != nil {
				t.Error(err)
				return
			}
			for round := range rounds {
				v.round(round)
			}
		})
		defer func() {
			for _, q := range h.queues {
				q.c.r.Post(q.q.HangUp)
				<-q.ended
			}
		}()
	}
	var pauses sync.WaitGroup
	over := make(chan struct{})
	pauses.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
			}
			err := target.PauseNamespace(testSub, 1)
			if err = errors.Join(err, target.ResumeNamespace(testSub, 1)); err != nil {
				t.Error(err)
			}
		}
	})
	running.Wait()
	close(over)
	pauses.Wait()
}

func (v *rival) connect() error {
	admin, args := v.dial(v.cores[0]), adminArgs(testSub)
	args.hostID = hostID(v.i)
	c := args.command()
	_, err := v.do(admin, c)
	_, enabled := v.do(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	args.cntlid, args.sqsize = nvme.ConnectResult(c.CQE.DW0()).CNTLID(), 127
	for i, core := range v.cores {
		q := v.dial(core)
		args.qid = uint16(i + 1)
		st, e := v.do(q, args.command())
		if err = errors.Join(err, e); !st.OK() {
			err = errors.Join(err, fmt.Errorf("queue %d: %w", i+1, st))
		}
		v.io = append(v.io, q)
	}
	return errors.Join(err, enabled)
}

// ok sends a command on one of the queues and reports whether it succeeded.
func (v *rival) ok(c *fabrictest.Command) bool {
	st, err := v.do(v.io[v.rnd.IntN(len(v.io))], c)
	return err == nil && st.OK()
}

// round registers, takes the namespace if it can, and then checks that it has it alone. All its
// writes have the same content.
func (v *rival) round(round int) {
	key := func(i int) uint64 { return uint64(i + 1) }
	data := bytes.Repeat([]byte{byte(v.i), byte(round)}, 256)
	var sent []<-chan struct{}
	write := func() *fabrictest.Command { return rw(nvme.NVMWrite, 1, 0, 1, data) }
	c := register(key(v.i))
	c.SQE.Reservation().Set(nvme.ReservationReplace, true, 0, 0)
	v.ok(c)
	has := v.ok(acquire(key(v.i), nvme.ExclusiveAccess))
	for i := 0; i < rivals && !has; i++ {
		if i == v.i {
			continue
		}
		action := nvme.ReservationAction(1 + v.rnd.IntN(2))
		has = v.ok(preempt(action, key(v.i), key(i), nvme.ExclusiveAccess)) &&
			v.ok(acquire(key(v.i), nvme.ExclusiveAccess))
	}
	for n := 0; has && n < 10; n++ {
		for range 16 { // without waiting: it may be preempted any time
			sent = append(sent, v.io[v.rnd.IntN(len(v.io))].send(write()))
		}
		read := rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))
		if has = v.ok(write()) && v.ok(read); has && !bytes.Equal(read.Data, data) {
			v.t.Errorf("host %d holds the namespace, but reads what %d has written", v.i,
				read.Data[0])
		}
	}
	for _, done := range sent {
		<-done
	}
}
