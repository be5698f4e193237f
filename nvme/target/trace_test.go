package target

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

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
			watched := strings.Contains(r.log.String(), `level=WARN msg="a command takes long"`)
			if refused := r.recorder.Refusals(); watched != (name == "the watchdog") ||
				watched && len(refused) > 0 {
				t.Errorf("refused: %+v, log:\n%s", refused, r.log)
			}
			dev.Release()
		})
	}
}
