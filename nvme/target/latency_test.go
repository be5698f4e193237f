package target

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
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
	testutil.True(t, counted[""] == 2 && counted[name(observe.LatencyEntries-3)] == 2,
		"%d of others, %d of the one that came back", counted[""],
		counted[name(observe.LatencyEntries-3)])
	hosts[0].hangUp()
	hosts[1].hangUp()
	r.w.Settle()
	late := connect(1000)
	read(late.io[0])
	look(observe.LatencyEntries + 4)
	testutil.True(t, counted[name(1000)] == 1 && counted[name(0)] == 0 && counted[name(1)] == 1 &&
		counted[""] == 3, "%d of the new one, %d and %d of the removed ones, %d of others",
		counted[name(1000)], counted[name(0)], counted[name(1)], counted[""])
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

var allQueues = observed.TraceQuery{Queue: -1}

// trace returns the queues that a Tracer reads.
func (r *harness) trace(t *observe.Tracer) (list []observed.TraceQueue) {
	r.t.Helper()
	r.during(func() error {
		return t.Read(r.t.Context(), func(q observed.TraceQueue) error {
			list = append(list, q)
			return nil
		})
	})
	return list
}

// traceIO returns the trace of the only I/O queue.
func (r *harness) traceIO() observed.TraceQueue {
	r.t.Helper()
	list := r.trace(observe.NewTracer(observed.TraceQuery{
		Host: testHost, Subsystem: testSub, Queue: 1,
	}, r.target.recorders))
	testutil.MustEqual(r.t, len(list), 1, "queues")
	return list[0]
}

func block() []byte { return make([]byte, 512) }

// TestTrace: the records of commands that succeed, fail, and are not completed.
func TestTrace(t *testing.T) {
	r, h, dev := onHanging(t, 1, 1)
	write := rw(nvme.NVMWrite, 1, 3, 1, block())
	write.SQE.SetCDW(12, uint32(nvme.RWFUA))
	r.ok(h.io[0], write)
	r.status(h.io[0], rw(nvme.NVMRead, 1, 1<<40, 2, make([]byte, 1024)), outOfRange)
	dev.Hold(nil)
	held := r.send(h.io[0], rw(nvme.NVMRead, 1, 4, 1, block()))
	r.w.Advance(time.Second)
	q := r.traceIO()
	testutil.MustTrue(t, len(q.Commands) == 4 && q.Missed == 0 && q.Reason == "" && q.QID == 1 &&
		q.Host == testHost && q.Subsystem == testSub, "%+v", q)
	for i, want := range []observed.TraceCommand{
		{
			Number: 1, State: "done", Command: "Connect", Opcode: uint16(nvme.FabricsOpcode),
			FabricsType: uint16(nvme.FabricsConnect), Status: "success",
		},
		{
			Number: 2, State: "done", Command: "Write", Opcode: uint16(nvme.NVMWrite), NSID: 1,
			LBA: 3, Blocks: 1, FUA: true, Length: 512, Status: "success",
		},
		{
			Number: 3, State: "done", Command: "Read", Opcode: uint16(nvme.NVMRead), NSID: 1,
			LBA: 1 << 40, Blocks: 2, Status: (outOfRange | nvme.More).String(),
			StatusCode: uint16(outOfRange | nvme.More),
		},
		{
			State: "executing", Command: "Read", Opcode: uint16(nvme.NVMRead), NSID: 1, LBA: 4,
			Blocks: 1, Length: 512,
		},
	} {
		got := q.Commands[i]
		if i == 0 {
			want.Length = got.Length
		}
		age := q.Time.Sub(got.Start)
		testutil.True(t, age >= time.Second && age <= time.Minute, "%v old", age)
		got.Start, got.CID = time.Time{}, 0
		got.WaitSeconds, got.HostDataSeconds, got.BackendSeconds, got.ResponseSeconds = 0, 0, 0, 0
		testutil.Equal(t, got, want, "")
	}
	dev.Release()
	r.until("it completes", func() bool { return held.Done })
	last := r.traceIO().Commands[3]
	testutil.True(t, last.State == "done" && last.BackendSeconds >= 1, "%+v", last)
	r.dial(0) // nothing is known of its peer
	testutil.Equal(t, len(r.trace(observe.NewTracer(allQueues, r.target.recorders))), 2, "queues")
}

// TestFollowTrace: a Tracer that follows returns each command once, and the number of missed
// commands.
func TestFollowTrace(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	tr := observe.NewTracer(observed.TraceQuery{Queue: 1, Follow: true}, r.target.recorders)
	want := uint64(1) // Connect
	for _, n := range []int{0, 5, observe.TraceDepth, observe.TraceDepth + 7} {
		for i := range n {
			r.ok(h.io[0], rw(nvme.NVMRead, 1, uint64(i%8), 1, block()))
		}
		seen := uint64(0)
		for _, q := range r.trace(tr) {
			seen += q.Missed + uint64(len(q.Commands))
			testutil.True(t, len(q.Commands) <= observe.TraceDepth &&
				q.Missed > 0 == (n > observe.TraceDepth),
				"%d commands, %d missed of %d", len(q.Commands), q.Missed, n)
		}
		if want += uint64(n); seen != want {
			t.Errorf("%d of %d commands", seen, want)
		}
		want = 0
		if list := r.trace(tr); len(list) > 0 {
			t.Errorf("again: %+v", list[0])
		}
	}
	loop := &countingLoop{Loop: r.target.handlers[0].loop}
	r.target.handlers[0].loop = loop
	if r.trace(tr); loop.posts.Load() != 1 {
		t.Errorf("%d messages to a reactor whose queues are idle", loop.posts.Load())
	}
}

type countingLoop struct {
	fabric.Loop
	posts atomic.Int32
}

func (l *countingLoop) Post(fn func()) {
	l.posts.Add(1)
	l.Loop.Post(fn)
}

// TestTraceDumps: dumps are kept of queues that fail, and only of these.
func TestTraceDumps(t *testing.T) {
	const left = "the host left while commands were outstanding"
	for name, tc := range map[string]struct {
		do   func(r *harness, h *host, hold func())
		want []string // reasons
	}{
		"the host goes": {func(_ *harness, h *host, _ func()) { h.io[0].HangUp() }, nil},
		"the host goes with a command at the device": {func(_ *harness, h *host, hold func()) {
			hold()
			h.io[0].HangUp()
		}, []string{left}},
		"the host goes before its data comes": {func(r *harness, h *host, _ func()) {
			c := rw(nvme.NVMWrite, 1, 0, 1, block())
			c.Late = true
			r.send(h.io[0], c)
			h.io[0].HangUp()
		}, []string{left}},
		"an operator": {func(r *harness, _ *host, hold func()) {
			hold()
			r.target.DisconnectHost(testHost, "")
		}, nil},
		"keep alive": {func(r *harness, h *host, _ func()) {
			r.target.find(testSub).lookup(h.cntlid).expire()
		}, []string{"keep alive timer expired after 1s", "keep alive timer expired after 1s"}},
		"the watchdog": {func(r *harness, _ *host, hold func()) {
			hold()
			for range 14 { // in which the timer runs
				r.w.Advance(500 * time.Millisecond)
			}
		}, []string{"a command takes 5s"}},
	} {
		t.Run(name, func(t *testing.T) {
			sub, dev := hangingSubsystem(t)
			sub.Namespaces[0].Timeout = time.Minute
			r, h := joined(t, 1, 1, sub)
			tc.do(r, h, func() {
				dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpRead })
				r.send(h.io[0], rw(nvme.NVMRead, 1, 4, 1, block()))
				r.until("the device has it", func() bool { return dev.Held() == 1 })
			})
			r.w.Settle()
			dumps := r.target.dumps.List(&allQueues)
			for i, q := range dumps {
				testutil.True(t, i < len(tc.want) && q.Reason == tc.want[i] && len(q.Commands) != 0,
					"kept: %q, %d commands", q.Reason, len(q.Commands))
				last := q.Commands[len(q.Commands)-1]
				testutil.True(t, q.QID != 1 || q.Reason == "" ||
					(last.Command == "Read") == (last.State == "executing"), "%+v", last)
			}
			testutil.Equal(t, len(dumps), len(tc.want), "dumps")
			// A slow command is not a refusal of the host.
			watched := strings.Contains(r.log.String(), `level=WARN msg="a command takes a long time"`)
			if refused := r.recorder.Refusals(); watched != (name == "the watchdog") ||
				watched && len(refused) > 0 {
				t.Errorf("refused: %+v, log:\n%s", refused, r.log)
			}
			dev.Release()
		})
	}
}

// telemetryCommand reads n bytes of log 07h from off on.
func telemetryCommand(lid nvme.LID, create bool, n int, off uint64) *fabrictest.Command {
	c := logCommand(lid, n, off)
	lsp := map[bool]uint8{true: nvme.TelemetryCreate}[create]
	c.SQE.GetLog().Set(lid, uint64(n), off, lsp, true)
	return c
}

// telemetry captures and reads log 07h as nvme-cli does: the header, and then the rest in pieces.
func (h *host) telemetry() (*nvme.TelemetryHeader, *admin.Capture) {
	h.r.t.Helper()
	lid := nvme.LogTelemetryHost
	raw := h.r.ok(h.admin, telemetryCommand(lid, true, nvme.TelemetryBlock, 0)).Data
	header, err := nvme.Parse[nvme.TelemetryHeader](raw)
	h.r.must(err)
	var data []byte
	size := targettest.TelemetrySize(raw)
	for off := nvme.TelemetryBlock; off < size; off += nvme.TelemetryBlock {
		data = append(data, h.r.ok(h.admin,
			telemetryCommand(lid, false, nvme.TelemetryBlock, uint64(off))).Data...)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	v := new(admin.Capture)
	h.r.must(d.Decode(v))
	if rest := bytes.Trim(data[d.InputOffset():], "\n"); len(rest) > 0 {
		h.r.t.Errorf("% x follows", rest)
	}
	return header, v
}

// TestTelemetry: log 07h describes the association. A capture stays until the next one, also
// through a reset.
func TestTelemetry(t *testing.T) {
	sub, dev := faultySubsystem(t)
	sub.Limits = qos.Limits{IOPS: 1000}
	r, h := joined(t, 2, 2, sub)
	id := h.controller()
	testutil.True(t, id.LPA&nvme.LPATelemetry != 0, "LPA %#x", id.LPA)
	raw := r.ok(h.admin, telemetryCommand(nvme.LogTelemetryHost, false, 1024, 0)).Data
	empty, err := nvme.Parse[nvme.TelemetryHeader](raw)
	testutil.True(t, err == nil &&
		*empty == (nvme.TelemetryHeader{LID: nvme.LogTelemetryHost, THS: 1}) &&
		bytes.Equal(raw[512:], make([]byte, 512)), "without a capture: %v %+v", err, empty)
	dev.Fail(func(io *backend.IO) error {
		return map[bool]error{true: backend.ErrIO}[io.Op == backend.OpWrite]
	})
	r.do(h.io[1], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
	a := h.args
	a.qid, a.cntlid, a.sqsize = 1, h.cntlid, 31 // is there already
	r.status(r.dial(0), a.command(), nvme.CommandSequenceError)
	header, v := h.telemetry()
	testutil.True(t, header.LID == 7 && header.THS == 1 && header.THDGN == 1 &&
		header.Last[0] != 0 && header.Last[1] == header.Last[0] && header.Last[2] == header.Last[0],
		"header %+v", header)
	testutil.True(t, v.Version == testFW && v.Host == testHost && v.Subsystem == testSub &&
		v.CNTLID == h.cntlid && v.Ready && strings.HasPrefix(v.ID, "010203") && !v.Truncated, "%+v",
		v)
	testutil.True(t, len(v.Connections) == 3 && v.Connections[1].ReadBytes == 4096 &&
		v.Connections[0].QID == 0 && v.Connections[2].Remote == testPeer, "connections %+v",
		v.Connections)
	if n := v.Namespaces; len(n) != 1 || n[0].ReadBytes != 4096 || n[0].SizeBytes != 1<<20 ||
		n[0].Errors["io"] != 1 || len(n[0].Errors) != 1 || n[0].State != "ready" {
		t.Errorf("namespaces %+v", n)
	}
	l := v.Limits
	testutil.True(t, len(l) == 1 && l[0].Of == "subsystem" && l[0].IOPS == 1000, "limits %+v", l)
	e := v.Events
	testutil.True(t, len(e) != 0 && e[0].Message == "controller created" && e[0].Level == "INFO" &&
		e[0].Attributes["transport"] == "tcp", "events %+v", e)
	if f := v.Refusals; len(f) != 1 || f[0].Count != 1 || f[0].Attributes["qid"] != "1" {
		t.Errorf("refusals %+v", f)
	}
	again := func() []byte {
		return r.ok(h.admin, telemetryCommand(nvme.LogTelemetryHost, false, 4096, 0)).Data
	}
	before := again()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	r.w.Settle()
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	testutil.True(t, bytes.Equal(again(), before), "the capture has changed")
	r.target.find(testSub).lookup(h.cntlid).Telemetry.Query.Age = 0
	if header, v := h.telemetry(); header.THDGN != 2 || len(v.Connections) != 1 {
		t.Errorf("the next capture: generation %d, %d connections", header.THDGN,
			len(v.Connections))
	}
}

// TestTelemetryOfOthers: the telemetry of a host has nothing about other hosts, even if the host
// has tried to use their controllers.
func TestTelemetryOfOthers(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	secret := info(nvme.TransportTCP)
	secret.Remote = netip.MustParseAddrPort("198.51.100.77:1234")
	r.target.SetHostLimits(otherHost, qos.Limits{IOPS: 77777})
	other := r.connectHostInfo(1, secret, asOther, func(a *connectArgs) { a.hostID = [16]byte{7} })
	r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.do(other.admin, identifyCommand(0x99, 0))
	h := r.connectHost(1)
	// the same name from elsewhere, with another identifier: a line has both addresses
	twin := r.connectHostInfo(0, secret, func(a *connectArgs) { a.hostID = [16]byte{8} })
	third := r.connectHost(0, func(a *connectArgs) { a.hostID = [16]byte{9} })
	// to steal a queue of the others: the refusal has the address that it must come from
	for _, o := range []*host{other, twin} {
		a := o.ioArgs(5)
		r.do(r.dial(0), a.command())
		a.host = testHost
		r.do(r.dial(0), a.command())
	}
	for _, h := range []*host{h, third} {
		_, v := h.telemetry()
		b, err := json.Marshal(v)
		r.must(err)
		for _, s := range []string{otherHost, "198.51.100.77", "77777", "070000"} {
			testutil.True(t, !bytes.Contains(b, []byte(s)), "%q is in %s", s, b)
		}
		testutil.True(t, len(v.Refusals) != 0 && len(v.Events) != 0, "%d refusals, %d events",
			len(v.Refusals), len(v.Events))
	}
}

// TestTelemetryOfRefusals: a subsystem that a listener does not serve leaves no other trace there
// than one that does not exist.
func TestTelemetryOfRefusals(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1),
		subsystems.Config{
			NQN: testSub + "hidden", AllowAnyHost: true, Listeners: []string{"other"},
		})
	h := r.connectHost(0)
	for _, name := range []string{"hidden", "absent"} {
		r.status(r.dial(0), adminArgs(testSub+name).command(), refusedStatus)
	}
	_, v := h.telemetry()
	testutil.MustTrue(t, len(v.Refusals) == 2, "refusals %+v", v.Refusals)
	absent, hidden := v.Refusals[0].Attributes, v.Refusals[1].Attributes
	testutil.MustTrue(t, hidden["subsystem"] == testSub+"hidden", "attributes %v", hidden)
	hidden["subsystem"] = absent["subsystem"]
	testutil.True(t, maps.Equal(absent, hidden) && v.Refusals[0].Message == v.Refusals[1].Message,
		"%v, and where there is none %v", hidden, absent)
}

// TestTelemetryIsBounded: a capture has a maximum size, and reports that it is incomplete.
func TestTelemetryIsBounded(t *testing.T) {
	sub := ramSubsystem(t, 300)
	for i := range sub.Namespaces {
		sub.Namespaces[i].Limits.IOPS = 1000
	}
	_, h := joined(t, 1, 0, sub)
	header, v := h.telemetry()
	n := int(header.Last[2]) * nvme.TelemetryBlock
	testutil.True(t, n <= admin.TelemetrySize && n >= admin.TelemetrySize/4, "%d bytes", n)
	testutil.True(t, v.Truncated && len(v.Namespaces) == admin.TelemetryList/2,
		"truncated %v, %d namespaces", v.Truncated, len(v.Namespaces))
}

// TestTelemetryAge: captures that follow closely are made of one.
func TestTelemetryAge(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	_, first := h.telemetry()
	q := &r.target.find(testSub).lookup(h.cntlid).Telemetry.Query
	q.Age = time.Hour // in case this takes long
	header, second := h.telemetry()
	testutil.True(t, second.Time.Equal(first.Time) && header.THDGN == 2,
		"captured at %v and %v, generation %d", first.Time, second.Time, header.THDGN)
	q.Age = 0
	_, third := h.telemetry()
	testutil.True(t, !third.Time.Equal(first.Time), "the capture is old")
}

// TestCapturesInTurn: hosts take turns, however many controllers one of them has. A command that
// waits for too long fails.
func TestCapturesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1, ramSubsystem(t, 1))
		other := info(nvme.TransportTCP)
		other.Remote = testLocal
		create := func(h *host) *fabrictest.Command {
			return r.send(h.admin,
				telemetryCommand(nvme.LogTelemetryHost, true, nvme.TelemetryBlock, 0))
		}
		a := make([]*host, 20)
		for i := range a {
			a[i] = r.connectHost(0)
		}
		b := r.connectHostInfo(0, other)
		release := r.occupy(true)
		left := len(a)
		for _, h := range a {
			create(h).Then = func() { left-- }
		}
		c := create(b)
		r.w.Settle()
		synctest.Wait() // they are in the queue, to ask the reactors
		release()
		synctest.Wait()
		release = r.occupy(true)
		r.w.Settle()
		synctest.Wait() // they are in the queue again
		stop := make(chan struct{})
		for range turns.MaxWorkers() { // afterwards the host keeps the workers busy
			w := r.target.find(testSub).lookup(b.cntlid).admin.hostWork(func() { <-stop })
			w.Request(&admin.Waiter{Answered: func() {}})
		}
		release()
		r.until("the other host is captured", func() bool { return c.Done })
		testutil.True(t, c.CQE.Status().OK() && left > 0, "%d are left, %v", left, c.CQE.Status())
		close(stop)
		r.until("all are captured", func() bool { return left == 0 })

		time.Sleep(admin.TelemetryAge)
		defer r.occupy(true)()
		c = create(b)
		time.Sleep(admin.AnswerWait)
		r.until("the command ends", func() bool { return c.Done })
		testutil.Equal(t, c.CQE.Status()&^nvme.More, nvme.InternalError, "")
	})
}

// TestCaptureHoldsNoWorker: captures that wait for a reactor do not keep the work of others
// waiting, and a reactor that does not answer has only one of each controller to answer.
func TestCaptureHoldsNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, 1, ramSubsystem(t, 1))
		var list []*controller
		var asked atomic.Int64
		for range turns.MaxWorkers() {
			c := r.target.find(testSub).lookup(r.connectHost(0).cntlid)
			list = append(list, c)
			ask := c.Hooks.Queues
			c.Hooks.Queues = func(most int) (<-chan []observed.Connection, int) {
				asked.Add(1)
				return ask(most)
			}
		}
		ended := make(chan error, len(list))
		for try := range 3 {
			for _, c := range list {
				go func() {
					_, err := c.Telemetry.Query.Ask()
					ended <- err
				}()
			}
			synctest.Wait()
			worked := false
			job := &turns.Job{Run: func() { worked = true }, Done: func() {}}
			r.target.shared.Workers.Submit(job)
			synctest.Wait()
			testutil.True(t, worked, "captures that wait for a reactor keep others waiting")
			testutil.Equal(t, int(asked.Load()), len(list), "questions to the reactor")
			want := controllers.ErrNoAnswer
			if try == 2 {
				want = nil
			}
			for range list {
				for want == nil && len(ended) == 0 {
					synctest.Wait()
					r.w.Settle()
				}
				testutil.Equal(t, <-ended, want, "")
			}
		}
	})
}
