package target

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

var allQueues = observed.TraceQuery{Queue: -1}

// trace returns the queues that a Tracer reads.
func (r *harness) trace(t *Tracer) (list []observed.TraceQueue) {
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
	list := r.trace(r.target.NewTracer(observed.TraceQuery{
		Host: testHost, Subsystem: testSub, Queue: 1,
	}))
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
	testutil.Equal(t, len(r.trace(r.target.NewTracer(allQueues))), 2, "queues")
}

// TestFollowTrace: a Tracer that follows returns each command once, and the number of missed
// commands.
func TestFollowTrace(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	tr := r.target.NewTracer(observed.TraceQuery{Queue: 1, Follow: true})
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
	h.hangUp()
	r.until("the queues have ended", func() bool { return r.target.Sessions() == 0 })
	r.trace(tr)
	testutil.True(t, len(tr.read) == 0, "%d queues that have ended are known", len(tr.read))
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
			// A command that takes long is nothing that the host was refused.
			watched := strings.Contains(r.log.String(), `level=WARN msg="a command takes long"`)
			if refused := r.recorder.Refusals(); watched != (name == "the watchdog") ||
				watched && len(refused) > 0 {
				t.Errorf("refused: %+v, log:\n%s", refused, r.log)
			}
			dev.Release()
		})
	}
}

// TestLogUnderAttack: refused Connect commands leave a few lines, which are escaped, for any number
// of them. The rest is counted. The lines that operators must see, and the lines about hosts,
// appear in full (X08).
func TestLogUnderAttack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 2
		each := testutil.Rounds(500, 10_000)
		r, h, dev := onHanging(t, 1, 1)
		r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		a := adminArgs("evil\n\x1b[31m%s" + strings.Repeat("x", 200))
		attack := func() {
			for range each {
				q := r.dial(0)
				r.status(q, a.command(), nvme.ConnectInvalidParameters)
				q.HangUp()
				r.queues = r.queues[:len(r.queues)-1]
			}
		}
		for range seconds {
			attack()
			operate(r, h, dev)
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		log := r.log.String()
		for text, want := range map[string]int{
			"does not answer": seconds, "answers again": seconds, "I/O failed": 1,
			"controller created": seconds + 1, "controller removed": seconds,
			"keep alive timer expired":                2 * seconds, // and as the reason
			"log lines were dropped":                  1,
			`message="connect refused"`:               1,
			fmt.Sprintf("lines=%d ", seconds*each-10): 1, `evil\n\x1b[31m%s`: 20,
		} {
			n := strings.Count(log, text)
			testutil.True(t, n == want, "the log says %d times %q, want %d", n, text, want)
		}
		testutil.True(t, !strings.Contains(log, "\x1b"), "what a peer sends is not escaped")
		n := strings.Count(log, "level=WARN") + strings.Count(log, "level=INFO")
		testutil.True(t, n <= 50, "%d lines", n)
	})
}

// operate makes lines that operators must see: the device hangs and fails, and a host connects and
// is lost.
func operate(r *harness, h *host, dev *backendtest.Faulty) {
	r.t.Helper()
	dev.Fail(func(*backend.IO) error { return backend.ErrIO })
	r.do(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	dev.Fail(nil)
	other := r.connectHost(0)
	r.target.find(testSub).lookup(other.cntlid).expire()
	r.w.Settle()
	dev.Hold(nil)
	read := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.w.Advance(3 * time.Second)
	dev.Release()
	r.until("the device answers again",
		func() bool { return read.Done && r.target.Stats()[0].Ready })
}

// TestControllerHasOneLine: the end of a controller is one line, with the reason and the lifetime
// of the controller, for any number of queues.
func TestControllerHasOneLine(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for want, end := range map[string]func(h *host){
		`reason="the connection of the admin queue has ended" duration=`: (*host).hangUp,
		`reason="keep alive timer expired after `: func(h *host) {
			r.target.find(testSub).lookup(h.cntlid).expire()
		},
		`reason="the host shut it down" duration=`: func(h *host) {
			r.ok(h.admin, propertySetCommand(nvme.PropertyCC,
				uint64(nvme.CCLinux|nvme.CCShutdownNormal)))
			h.hangUp()
		},
	} {
		h := r.connectHost(4)
		before := len(r.log.String())
		end(h)
		r.until("the controller is gone", func() bool { return len(r.target.Controllers()) == 0 })
		log := r.log.String()[before:]
		testutil.True(t, strings.Count(log, want) == 1 && strings.Count(log, "\n") <= 2 &&
			strings.Count(log, "controller removed") == 1, "no %s, or more than that:\n%s", want,
			log)
	}
}

// TestLogsInDwords: every log page can be read in pieces, down to NUMD 0, one dword. The pieces are
// equal to the page read at once (M07).
func TestLogsInDwords(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	c := r.target.find(testSub).lookup(h.cntlid)
	for i := range 256 {
		lid := nvme.LID(i)
		p := c.LogPage(lid)
		if p == nil || p.Size == 0 || lid == nvme.LogSMART { // which counts such commands
			continue
		}
		size := int(p.Size)
		r.run(fmt.Sprintf("log %02Xh", uint8(lid)), func(t *testing.T) {
			whole := r.ok(h.admin, logCommand(lid, size, 0)).Data
			for _, n := range []int{4, 1000} {
				var got []byte
				for off := 0; off < size; off += n {
					got = append(got,
						r.ok(h.admin, logCommand(lid, min(n, size-off), uint64(off))).Data...)
				}
				testutil.True(t, bytes.Equal(got, whole),
					"pieces of %d bytes differ from the whole", n)
			}
			r.status(h.admin, logCommand(lid, 4, uint64(size)), invalidField)
		})
	}
}

// TestEffectsLogAgrees: log 05h lists exactly the opcodes that are served (I06).
func TestEffectsLogAgrees(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	l, err := nvme.Parse[nvme.EffectsLog](r.ok(h.admin, logCommand(nvme.LogEffects, 4096, 0)).Data)
	testutil.Must(t, err)
	for op := range 256 {
		if nvme.Opcode(op) == nvme.FabricsOpcode {
			continue
		}
		c := r.do(h.io[0], command(nvme.Opcode(op), 0, nil))
		known := c.CQE.Status().Code() != nvme.InvalidOpcode
		if listed := l.IO[op]&nvme.EffectSupported != 0; known != listed {
			t.Errorf("I/O opcode %#x: listed %v, known %v", op, listed, known)
		}
		testutil.True(t, (l.Admin[op] != 0) == (adminOps[op].execute != nil),
			"admin opcode %#x: %#x", op, l.Admin[op])
	}
	testutil.True(t, l.IO[nvme.NVMWrite]&nvme.EffectContentChange != 0,
		"Write does not change content")
}

// TestStats: the counters, the state and the health of namespaces.
func TestStats(t *testing.T) {
	nvmeDrive := &testDrive{id: "a", counts: true, log: full(1)}
	sata := &testDrive{id: "sata", log: nvme.SMARTLog{Temperature: 310, AvailableSpare: 100}}
	r, h := joined(t, 1, 1, onDrives(t, nvmeDrive, sata, nil))
	for range 3 {
		r.ok(h.io[0], rw(nvme.NVMRead, 2, 0, 2, make([]byte, 1024)))
	}
	r.ok(h.io[0], rw(nvme.NVMWrite, 2, 0, 4, make([]byte, 2048)))
	r.ok(h.io[0], command(nvme.NVMFlush, 2, nil))
	for range 2 {
		r.ok(h.io[0], rw(nvme.NVMWriteZeroes, 2, 0, 4, nil))
	}
	r.ok(h.io[0], dsm(2, true, [2]uint64{0, 1}, [2]uint64{4, 1}, [2]uint64{8, 0}, [2]uint64{9, 2}))
	for _, s := range r.target.Stats() {
		testutil.True(t, s.Drive == nil || s.Drive.Answered.IsZero(),
			"the drive of namespace %d was asked", s.NSID)
	}

	r.target.CheckHealth()
	list := r.target.Stats()
	testutil.MustTrue(t, len(list) == 3, "%+v", list)
	a, b, c := list[0], list[1], list[2]
	testutil.True(t, a.NSID == 1 && a.Drive.Counts && a.Drive.ID == "a" &&
		!a.Drive.Answered.IsZero() && *a.Health == full(1), "a drive: %+v, %+v, %+v", a, a.Drive,
		a.Health)
	testutil.True(t, b.Reads == 3 && b.ReadBytes == 3072 && b.Writes == 1 &&
		b.WrittenBytes == 2048 && b.BlockSizeBytes == 512 && b.SizeBytes != 0 && b.Ready,
		"counters: %+v", b)
	testutil.True(t, b.Flushes == 1 && b.WriteZeroes == 2 && b.Discards == 3 && c.Flushes == 0,
		"counters: %+v, another namespace: %+v", b, c)
	testutil.True(t, b.Health.HostReads == u128(3) && b.Health.Temperature == 310,
		"the drive does not count: %+v", b.Health)
	testutil.True(t, c.Drive == nil && c.Health.CriticalWarning == 0 && !c.Degraded &&
		!c.WriteProtected, "no drive: %+v, %+v", c, c.Health)

	ns := r.target.find(testSub).Namespaces.Load().Get(3)
	r.raw[0].channelTo(ns).failed(&backend.IO{Err: backend.ErrDegraded})
	if c := r.target.Stats()[2]; !c.Degraded || !c.WriteProtected ||
		c.Health.CriticalWarning != nvme.SMARTReliability|nvme.SMARTReadOnly {
		t.Errorf("degraded: %+v, %+v", c, c.Health)
	}
}

// hangingDrive does not answer until it is released.
type hangingDrive struct{ asked, release chan struct{} }

func (d hangingDrive) ID() string   { return "hangs" }
func (d hangingDrive) Counts() bool { return true }
func (d hangingDrive) SMART() (*nvme.SMARTLog, error) {
	close(d.asked)
	<-d.release
	return &nvme.SMARTLog{Temperature: 300}, nil
}

// TestStatsWaitForNoDrive: Stats does not wait for a drive that does not answer. It returns the
// values known without it.
func TestStatsWaitForNoDrive(t *testing.T) {
	d := hangingDrive{make(chan struct{}), make(chan struct{})}
	r := newHarness(t, 1, onDrives(t, d))
	checked := make(chan struct{})
	go func() {
		r.target.CheckHealth()
		close(checked)
	}()
	<-d.asked
	s := r.target.Stats()[0]
	testutil.True(t, s.Drive.Answered.IsZero() && s.Health.Temperature == 0 &&
		s.Health.AvailableSpare == 100, "%+v, %+v", s.Drive, s.Health)
	close(d.release)
	<-checked
	if s := r.target.Stats()[0]; s.Drive.Answered.IsZero() || s.Health.Temperature != 300 {
		t.Errorf("%+v, %+v", s.Drive, s.Health)
	}
}
