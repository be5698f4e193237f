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
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// modelHosts are the hosts of the controllers: the first one has two.
var modelHosts = [...]int{0, 1, 2, 3, 0}

// modelRun compares a target with the model.
type modelRun struct {
	*harness
	rnd   *rand.Rand
	m     *targettest.Reservations
	hosts []*host // by controller
	logs  [len(modelHosts)]targettest.Notifications
}

// TestReservationModel sends random commands of several hosts, one of them with two controllers,
// and restarts the target now and then: every status, report and notification is that of the model.
func TestReservationModel(t *testing.T) {
	t.Parallel() // it computes
	const seeds, restarts = 2, 10
	steps := testutil.Rounds(500, 50_000)
	for seed := range uint64(seeds) {
		x := &modelRun{
			rnd: rand.New(rand.NewPCG(seed, 2)),
			m:   &targettest.Reservations{Keys: map[int]uint64{}},
		}
		x.m.Notify = func(h int, typ nvme.ReservationNotification) {
			for c, of := range modelHosts {
				if of == h {
					x.logs[c].Add(typ, 1)
				}
			}
		}
		store := &memoryStore{}
		for restart := range restarts {
			ok := t.Run("", func(t *testing.T) {
				x.harness = storeHarness(t, 2, 1, store)
				x.connect()
				for range steps {
					x.step()
				}
				x.compare()
			})
			testutil.MustTrue(t, ok, "seed %d, restart %d", seed, restart)
			x.m.Restart()
			clear(x.logs[:])
		}
	}
}

func (x *modelRun) connect() {
	x.hosts = nil
	for c, id := range modelHosts {
		tr := nvme.TransportTCP
		if c >= 3 {
			tr = nvme.TransportRDMA
		}
		x.hosts = append(x.hosts, x.connectHostInfo(2, info(tr), func(a *connectArgs) {
			a.hostID = hostID(id)
		}))
	}
}

// step sends one command.
func (x *modelRun) step() {
	x.t.Helper()
	c := x.rnd.IntN(len(x.hosts))
	h, q := modelHosts[c], x.hosts[c].io[x.rnd.IntN(2)]
	switch n := x.rnd.IntN(100); {
	case n < 45:
		x.io(h, q)
	case n < 90:
		x.reservation(h, q)
	case n < 94:
		x.feature(x.hosts[c])
	case n < 98:
		x.log(c)
	default:
		x.compare()
	}
	if x.t.Failed() {
		x.t.FailNow()
	}
}

// io sends a command of the read or write command group, or one that is in neither.
func (x *modelRun) io(h int, q *fabrictest.Queue) {
	x.t.Helper()
	data := make([]byte, 512)
	if x.rnd.IntN(8) == 0 {
		x.pair(h, q, data)
		return
	}
	all := []*fabrictest.Command{
		rw(nvme.NVMRead, 1, 0, 1, data), rw(nvme.NVMCompare, 1, 8, 1, data),
		rw(nvme.NVMVerify, 1, 0, 1, nil), rw(nvme.NVMWrite, 1, 0, 1, data),
		rw(nvme.NVMWriteZeroes, 1, 0, 1, nil), dsm(1, true, [2]uint64{0, 1}),
		dsm(1, false, [2]uint64{0, 1}), command(nvme.NVMFlush, 1, nil),
		command(nvme.NVMFlush, nvme.NSIDAll, nil),
		copyTo(16, nvme.CopyRanges, source{blocks: 1}),
	}
	i := x.rnd.IntN(len(all))
	all[i].InCapsule = i == 3 && x.rnd.IntN(2) == 0
	x.status(q, all[i], x.m.Conflict(h, i > 2))
}

// pair sends a fused Compare and Write, which is refused as a whole.
func (x *modelRun) pair(h int, q *fabrictest.Queue, data []byte) {
	x.t.Helper()
	pair := pairOf(0, data, data)
	x.must(q.Send(pair...))
	want := [2]nvme.Status{x.m.Conflict(h, false), x.m.Conflict(h, true)}
	if !want[1].OK() && want[0].OK() {
		want[0] = nvme.AbortedFailedFused
	}
	for i, c := range pair {
		x.until("a pair completes", func() bool { return c.Done })
		testutil.Equal(x.t, c.CQE.Status()&^nvme.More, want[i], "command %d of a pair", i)
	}
}

// key is one that registrants have, their own more often than another, or none.
func (x *modelRun) key(h int) uint64 {
	if own := x.m.Keys[h]; own != 0 && x.rnd.IntN(4) > 0 {
		return own
	}
	return uint64(x.rnd.IntN(4))
}

func (x *modelRun) reservation(h int, q *fabrictest.Queue) {
	x.t.Helper()
	key, other := x.key(h), uint64(x.rnd.IntN(4))
	act, typ := nvme.ReservationAction(x.rnd.IntN(3)), x.rnd.IntN(6)+1
	switch n := x.rnd.IntN(10); {
	case n < 4:
		iekey := x.rnd.IntN(4) == 0
		ptpl := []nvme.ChangePTPL{0, 0, 0, 0, 2, 3}[x.rnd.IntN(6)]
		c := resv(nvme.IOReservationRegister, 0, 0, key, other)
		c.SQE.Reservation().Set(act, iekey, 0, ptpl)
		x.status(q, c, x.m.Register(h, act, iekey, key, other, ptpl))
	case n < 8:
		c := preempt(act, key, other, nvme.ReservationType(typ))
		x.status(q, c, x.m.Acquire(h, act, key, other, typ))
	default:
		if x.rnd.IntN(2) == 0 {
			typ = x.m.Type // more often the right one
		}
		act = nvme.ReservationAction(min(x.rnd.IntN(5), 1) ^ 1)
		c := resv(nvme.IOReservationRelease, act, nvme.ReservationType(typ), key, 0)
		x.status(q, c, x.m.Release(h, act, key, typ))
	}
}

func (x *modelRun) feature(h *host) {
	x.t.Helper()
	var c *fabrictest.Command
	if x.rnd.IntN(2) == 0 {
		x.m.Mask = uint32(x.rnd.IntN(8)) << 1 & uint32(x.rnd.IntN(16)) // often nothing
		c = setFeature(nvme.FeatureReservationMask, x.m.Mask)
	} else {
		x.m.PTPL = x.rnd.IntN(4) > 0
		c = setFeature(nvme.FeatureReservationPersist, 0)
		if x.m.PTPL {
			c = setFeature(nvme.FeatureReservationPersist, 1)
		}
	}
	c.SQE.SetNSID([]uint32{1, nvme.NSIDAll}[x.rnd.IntN(2)])
	x.ok(h.admin, c)
}

// log reads some notifications of a controller.
func (x *modelRun) log(c int) {
	x.t.Helper()
	x.w.Settle()
	for range x.rnd.IntN(50) {
		want := x.logs[c].Read()
		if got := x.hosts[c].notification(); *got != want {
			x.t.Errorf("controller %d: %+v, want %+v", c, got, want)
		}
	}
}

// compare compares a report with the model.
func (x *modelRun) compare() {
	x.t.Helper()
	s, list := x.hosts[x.rnd.IntN(len(x.hosts))].report()
	want := nvme.ReservationStatus{
		GEN: x.m.Generation, RTYPE: nvme.ReservationType(x.m.Type), REGCTL: uint16(len(x.m.Keys)),
	}
	if x.m.PTPL {
		want.PTPLS = 1
	}
	testutil.True(x.t, *s == want, "%+v, want %+v", s, want)
	for _, g := range list {
		h := int(g.HostID[1]) - 1
		if g.RKEY != x.m.Keys[h] || g.RCSTS == 1 != x.m.Holds(h) || g.CNTLID != 0xFFFF {
			x.t.Errorf("host %d: %+v, want key %d, holder %v", h, g, x.m.Keys[h], x.m.Holds(h))
		}
	}
}

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
