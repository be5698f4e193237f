package target

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// latencies returns the latencies of the target, and checks that they add up.
func (r *harness) latencies() (list []observe.LatencyInfo) {
	r.t.Helper()
	r.during(func() (err error) {
		list, err = r.target.Latencies(r.t.Context())
		return err
	})
	for _, l := range list {
		sum := int64(0)
		for i := range l.Stages {
			sum += l.Stages[i].Sum()
			if n := l.Stages[i].Count(); n != l.IOs {
				r.t.Errorf("%d of %d commands in %v", n, l.IOs, fabric.Stage(i))
			}
		}
		testutil.True(r.t, sum == l.Total.Sum() && l.Total.Count() == l.IOs,
			"the stages have %d ns, the total %d ns of %d commands", sum, l.Total.Sum(), l.IOs)
	}
	return list
}

// only returns the counters of the operation if nothing else was counted.
func (r *harness) only(o observe.Operation) *observe.Latency {
	r.t.Helper()
	list := r.latencies()
	testutil.MustTrue(r.t, len(list) == 1 && list[0].Operation == o &&
		list[0].HostNQN == testHost && list[0].SubNQN == testSub && list[0].NSID == 1, "%+v", list)
	return list[0].Latency
}

// TestStages: each cause of latency counts for its own stage.
func TestStages(t *testing.T) {
	const d = 30 * time.Millisecond
	block := func() []byte { return make([]byte, 512) }
	for name, tc := range map[string]struct {
		do    func(r *harness, x *hang)
		op    observe.Operation
		stage fabric.Stage
	}{
		"backend": {func(_ *harness, x *hang) {
			x.dev.Hold(nil)
			c := x.send(x.h.io[0], rw(nvme.NVMRead, 1, 0, 1, block()))
			x.until("the device has it", func() bool { return x.dev.Held() == 1 })
			x.w.Advance(d)
			x.dev.Release()
			x.until("it completes", func() bool { return c.Done })
		}, observe.OperationRead, fabric.StageBackend},
		"given up": {func(_ *harness, x *hang) {
			x.dev.Hold(nil)
			c := x.send(x.h.io[0], rw(nvme.NVMRead, 1, 0, 1, block()))
			x.until("the device has it", func() bool { return x.dev.Held() == 1 })
			x.w.Advance(5 * time.Second)
			x.until("it completes", func() bool { return c.Done })
			x.dev.Release()
			if l := x.only(observe.OperationRead); l.Errors != 1 || l.Bytes != 0 {
				x.t.Errorf("%d errors, %d bytes", l.Errors, l.Bytes)
			}
		}, observe.OperationRead, fabric.StageBackend},
		"data of the host": {func(r *harness, x *hang) {
			c := rw(nvme.NVMWrite, 1, 0, 1, block())
			c.Late = true
			r.send(x.h.io[0], c)
			r.w.Advance(d)
			x.h.io[0].Arrive(c)
			r.until("it completes", func() bool { return c.Done })
		}, observe.OperationWrite, fabric.StageHostData},
		"limit": {func(r *harness, x *hang) {
			r.ok(x.h.io[0], rw(nvme.NVMRead, 1, 0, 1, block())) // opens the channel
			r.target.SetHostLimits(testHost, qos.Limits{IOPS: 1})
			r.w.Settle()
			r.ok(x.h.io[0], rw(nvme.NVMRead, 1, 0, 1, block()))
			c := r.send(x.h.io[0], rw(nvme.NVMRead, 1, 0, 1, block()))
			r.w.Advance(2 * time.Second)
			r.until("it completes", func() bool { return c.Done })
		}, observe.OperationRead, fabric.StageWait},
		"limit of in-capsule data": {func(r *harness, x *hang) {
			r.ok(x.h.io[0], rw(nvme.NVMWrite, 1, 0, 1, block()))
			r.target.SetHostLimits(testHost, qos.Limits{IOPS: 1})
			r.w.Settle()
			for range 2 {
				c := rw(nvme.NVMWrite, 1, 0, 1, block())
				c.InCapsule = true
				r.send(x.h.io[0], c)
			}
			r.w.Advance(2 * time.Second)
		}, observe.OperationWrite, fabric.StageWait},
	} {
		t.Run(name, func(t *testing.T) {
			r, dev := hangingHarness(t, 1)
			x := &hang{harness: r, dev: dev, h: r.connectHost(1)}
			tc.do(r, x)
			l := r.only(tc.op)
			if got := time.Duration(l.Stages[tc.stage].Sum()); got < d || got != time.Duration(
				l.Total.Sum()) {
				t.Errorf("%v of %v in %v", got, time.Duration(l.Total.Sum()), tc.stage)
			}
			testutil.True(t, l.Slowest[tc.stage] == l.Total.Max(), "the slowest: %v", l.Slowest)
		})
	}
}

// TestSlowCommands: commands above the threshold are logged with their stages, only a few of them,
// and are not refusals.
func TestSlowCommands(t *testing.T) {
	r, h, dev := onHanging(t, 1, 1)
	read := func(d time.Duration) {
		dev.Hold(nil)
		c := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		r.until("the device has it", func() bool { return dev.Held() == 1 })
		r.w.Advance(d)
		dev.Release()
		r.until("it completes", func() bool { return c.Done })
	}
	lines := func() int { return strings.Count(r.log.String(), "slow command") }
	read(time.Second)
	r.target.SetSlowIO(100 * time.Millisecond)
	read(99 * time.Millisecond)
	testutil.True(t, lines() == 0, "logged without need:\n%s", r.log)
	for range 30 {
		read(120 * time.Millisecond)
	}
	if n := lines(); n != 10 || !strings.Contains(r.log.String(), "command=Read duration=120ms "+
		"wait=0s host_data=0s backend=120ms response=0s") || len(r.recorder.Refusals()) > 0 {
		t.Errorf("%d lines:\n%s", n, r.log)
	}
}

// recorded is a handler that passes each request to a test when its response has left.
type recorded struct {
	fabric.Handler
	sent func(*fabric.Request)
}

func (h recorded) Sent(r *fabric.Request) {
	h.sent(r)
	h.Handler.Sent(r)
}

// TestLatencyIsExact: the quantiles of each stage are within 5 % of the exact quantiles of all
// commands. Counts, errors and bytes are exact.
func TestLatencyIsExact(t *testing.T) {
	r, dev := hangingHarness(t, 2)
	var exact [fabric.Stages + 1][]int64
	io := false
	for i, h := range r.handlers {
		r.handlers[i] = recorded{h, func(q *fabric.Request) {
			if !io {
				return
			}
			total := int64(0)
			for i, ns := range q.Stages {
				exact[i] = append(exact[i], ns)
				total += ns
			}
			exact[fabric.Stages] = append(exact[fabric.Stages], total)
		}}
	}
	h := r.connectHost(2)
	io = true
	rng := rand.New(rand.NewPCG(3, 3))
	pass := func() { r.w.Advance(time.Duration(1000 * math.Exp(rng.NormFloat64()*2+2))) }
	const n = 3000
	for i := range n {
		c := rw(nvme.NVMWrite, 1, uint64(i%8), 1, make([]byte, 512))
		if i%100 == 0 {
			c.Broken = nvme.TransientTransportError
		}
		c.Late = true
		q := h.io[i%2]
		dev.Hold(nil)
		r.send(q, c)
		pass()
		q.Arrive(c)
		if !c.Done {
			pass()
		}
		dev.Release()
		r.until("it completes", func() bool { return c.Done })
	}
	l := r.only(observe.OperationWrite)
	const failed = n / 100
	testutil.True(t, l.IOs == n && l.Errors == failed && l.Bytes == (n-failed)*512,
		"%d commands, %d errors, %d bytes", l.IOs, l.Errors, l.Bytes)
	for stage, values := range exact {
		slices.Sort(values)
		hist := &l.Total
		if stage < len(l.Stages) {
			hist = &l.Stages[stage]
		}
		for _, q := range []float64{0.5, 0.9, 0.99, 0.999, 0.9999, 1} {
			want := float64(values[min(int(q*n), n-1)])
			if got := float64(hist.Quantile(q)); math.Abs(got-want) > 0.05*want {
				t.Errorf("stage %d, quantile %v: %v, want %v", stage, q, got, want)
			}
		}
	}
}

// again is a queue that sends a command as soon as another one has completed.
type again struct {
	fabric.Queue
	then func()
}

func (q *again) Complete([]*fabric.Request) {
	if then := q.then; then != nil {
		q.then = nil
		then()
	}
}

// TestStagesAreNeverNegative: a command may come and complete during the delivery of earlier
// completions, after the clock was read for them. None of its stages is negative.
func TestStagesAreNeverNegative(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 1<<20, 512)}, 32)
	q := &again{Queue: b.q}
	b.io.(*session).q = q
	send := func(r *fabric.Request) {
		r.Reset()
		r.Start = b.clock()
		r.SQE = rw(nvme.NVMRead, 1, 1<<40, 1, nil).SQE // refused, so it ends at once
		b.h.Prepare([]*fabric.Request{r})
		b.h.Execute([]*fabric.Request{r})
	}
	q.then = func() { send(b.reqs[1]) }
	send(b.reqs[0])
	b.h.Poll(64)
	got := b.reqs[1].Stages[fabric.StageBackend]
	testutil.True(t, got > 0, "%d ns in the backend", got)
}

// TestLatencyEntries: the number of entries is bounded, and hosts beyond it share one. A host that
// comes back finds its entry. The oldest host that has left makes room for a new one. The counts of
// a namespace never decrease.
func TestLatencyEntries(t *testing.T) {
	n := reflect.TypeFor[observe.Latency]().Size()
	testutil.True(t, n <= 22<<10, "%d bytes for each operation, 22 KiB are documented", n)
	r := newHarness(t, 1, ramSubsystem(t, 2))
	name := func(i int) string { return fmt.Sprint(testHost[:len(testHost)-3], 100+i) }
	connect := func(i int) *host {
		return r.connectHostInfo(1, from(i), func(a *connectArgs) {
			a.host, a.hostID = name(i), [16]byte{byte(i), byte(i >> 8), 1}
		})
	}
	read := func(q *fabrictest.Queue) { r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) }
	counted := map[string]uint64{}
	total := uint64(0)
	look := func(want uint64) {
		t.Helper()
		clear(counted)
		total = 0
		for _, l := range r.latencies() {
			counted[l.HostNQN] += l.IOs
			total += l.IOs
		}
		testutil.MustTrue(t, total == want && len(counted) <= observe.LatencyEntries+1,
			"%d commands of %d hosts, want %d", total, len(counted), want)
	}
	var hosts []*host
	for i := range observe.LatencyEntries + 2 {
		h := connect(i)
		hosts = append(hosts, h)
		read(h.io[0])
		if i == observe.LatencyEntries-3 {
			h.hangUp() // and comes back
			r.w.Settle()
			hosts[i] = connect(i)
			read(hosts[i].io[0])
		}
	}
	look(observe.LatencyEntries + 3)
	if counted[""] != 2 || counted[name(observe.LatencyEntries-3)] != 2 {
		t.Errorf("%d of others, %d of the one that came back", counted[""],
			counted[name(observe.LatencyEntries-3)])
	}
	hosts[0].hangUp()
	hosts[1].hangUp()
	r.w.Settle()
	late := connect(1000)
	read(late.io[0])
	look(observe.LatencyEntries + 4)
	if counted[name(1000)] != 1 || counted[name(0)] != 0 || counted[name(1)] != 1 ||
		counted[""] != 3 {
		t.Errorf("%d of the new one, %d and %d of those that left, %d of others",
			counted[name(1000)], counted[name(0)], counted[name(1)], counted[""])
	}
	gone, err := r.target.RemoveNamespace(testSub, 1)
	r.must(err)
	r.must(untilGone(r.w, gone))
	look(0)
}

// TestEntriesOfReturning: the entries of a host that leaves with many namespaces and comes back at
// once count for it until they are given back.
func TestEntriesOfReturning(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, AllowAnyHost: true})
	h := r.raw[0]
	join := func() *session {
		s := &session{h: h, info: &fabric.QueueInfo{Remote: testPeer}}
		s.ctrl = &controller{Controller: controllers.Controller{HostNQN: testHost}}
		s.joinHost()
		return s
	}
	before := join()
	for i := range observe.LatencyEntries {
		h.shares.FlowTo(before.host, &channelOf(r, i).shares)
	}
	o := before.host.Payer
	h.shares.Leave(before.host)
	left := o.Entries
	after := join()
	testutil.True(t, left != 0 && after.host.Payer == o,
		"%d entries are left, and the host that comes back has others: %t", left,
		after.host.Payer != o)
	r.w.Settle()
	testutil.Equal(t, o.Entries, 0, "entries of a host without flows")
	h.shares.Leave(after.host)
	testutil.Equal(t, len(h.shares.Owners), 0, "owners are left")
}
