package e2e

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// limitsTime is the time for which TestLimits measures each limit.
const limitsTime, limitsTolerance = 10 * time.Second, 0.03

// limitsTries is the number of attempts for a rate that is too low or not shared equally.
const limitsTries = 5

// limitsOf has the limits of the namespace, the subsystem and the third host of a test.
type limitsOf struct{ namespace, subsystem, host qos.Limits }

func (h *Env) setLimits(l limitsOf) {
	h.T.Helper()
	testutil.Value(h.Target.UpdateSubsystem(
		subsystems.Config{NQN: SubNQN, AllowAnyHost: true, Limits: l.subsystem}))(h.T)
	h.Must(h.Target.UpdateNamespace(SubNQN,
		namespaces.Config{NSID: 1, Limits: l.namespace}, nil))
	h.Target.SetHostLimits(fmt.Sprint(HostNQN, 2), l.host)
}

// TestLimits: limits of any object that change under load hold, on one reactor and on four, and
// hosts share them equally. Hosts 0 and 1 use namespace 1, host 0 with three queues, and host 2
// uses namespace 2.
func TestLimits(t *testing.T) {
	testutil.Soak(t, "it measures rates")
	if raceEnabled {
		t.Skip("needs a build without the race detector, whose CPU time limits the rates")
	}
	for _, v := range Plain {
		for _, reactors := range []int{1, 4} {
			t.Run(fmt.Sprint(v.Name, "/", reactors), func(t *testing.T) {
				testLimits(t, v, reactors)
			})
		}
	}
}

func testLimits(t *testing.T, v Variant, reactors int) {
	h := New(t, Options{Reactors: reactors, Devices: []backend.Device{
		harness.OpenRAM(t, 64<<20, 4096), harness.OpenRAM(t, 64<<20, 4096),
	}})
	h.setLimits(limitsOf{subsystem: qos.Limits{IOPS: 100}})
	const size, depth = 16 << 10, 16
	pumps := make([][]*pump, 3)
	for i := range pumps {
		c := h.Dial(v, func(o *host.Options) { o.HostNQN = fmt.Sprint(HostNQN, i) })
		for qid := range []int{3, 1, 2}[i] {
			q := h.Open(c, uint16(qid+1), depth+1)
			p := newPump(q, h.Buffer(c, depth*size), depth)
			p.nsid = []uint32{1, 1, 2}[i]
			pumps[i] = append(pumps[i], p)
		}
	}
	iops, bytes := qos.Limits{IOPS: 1000}, qos.Limits{Bandwidth: 1000 * size}
	half := qos.Limits{IOPS: 500}
	for _, step := range []struct {
		name   string
		limits limitsOf
		want   [3]float64 // commands per second
	}{
		{"namespace IOPS", limitsOf{namespace: iops, host: bytes}, [3]float64{500, 500, 1000}},
		{"namespace bandwidth", limitsOf{namespace: bytes, host: half}, [3]float64{500, 500, 500}},
		{"subsystem IOPS", limitsOf{subsystem: iops}, [3]float64{333, 333, 333}},
		{
			"subsystem bandwidth, host IOPS",
			limitsOf{subsystem: bytes, host: qos.Limits{IOPS: 100}},
			[3]float64{450, 450, 100},
		},
	} {
		h.setLimits(step.limits)
		const tolerance = limitsTolerance
		runFor(t, pumps, 500*time.Millisecond) // past the burst
		wanted := step.want[0] + step.want[1] + step.want[2]
		for try := 1; ; try++ {
			got, took := runFor(t, pumps, limitsTime)
			total, off := 0.0, 0.0 // off: the largest deviation of a host from its rate
			for i := range got {
				got[i] /= took.Seconds()
				total += got[i]
				off = max(off, math.Abs(got[i]/step.want[i]-1))
			}
			t.Logf("%s: %.1f commands per second", step.name, got)
			if total > wanted*(1+tolerance) {
				t.Errorf("%s: %.1f commands per second in all, want %.1f", step.name, total, wanted)
			} else if total < wanted*(1-tolerance) || off > 2*tolerance {
				// Hosts that do not get enough CPU time do not reach their rates.
				if try < limitsTries {
					continue
				}
				t.Errorf("%s: want %.1f commands per second, %.0f %% off in all or %.0f %% each",
					step.name, step.want, 100*tolerance, 200*tolerance)
			}
			break
		}
	}
	h.setLimits(limitsOf{})
	for slices.ContainsFunc(pumps, busy) {
		stepAll(t, pumps, false)
	}
}

func busy(list []*pump) bool {
	return slices.ContainsFunc(list, func(p *pump) bool { return p.q.Outstanding() > 0 })
}

func stepAll(t *testing.T, pumps [][]*pump, more bool) {
	for _, list := range pumps {
		for _, p := range list {
			p.step(t, more)
		}
	}
	time.Sleep(200 * time.Microsecond) // for other processes
}

// runFor keeps the pumps busy for a while and returns the number of completed commands of each
// host.
func runFor(t *testing.T, pumps [][]*pump, d time.Duration) (done []float64, took time.Duration) {
	done = make([]float64, len(pumps))
	count := func(sign int) {
		for i, list := range pumps {
			for _, p := range list {
				done[i] += float64(sign * p.reads)
			}
		}
	}
	count(-1)
	start := time.Now()
	for took < d {
		stepAll(t, pumps, true)
		took = time.Since(start)
	}
	count(1)
	return done, took
}

// TestDataAtLimit: data written and read at a limit is intact on every path: in capsules, by R2T,
// or from memory of the namespace.
func TestDataAtLimit(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		h.setLimits(limitsOf{namespace: qos.Limits{IOPS: 1000, Burst: qos.MinBurst}})
		c := h.Dial(v)
		q := h.Open(c, 1, 17)
		const most, each = 256 << 10, 1 << 20
		out, in := h.Buffer(c, 16*most), h.Buffer(c, 16*most)
		for round, size := range []int{512, 4096, 8192, 64 << 10, most} {
			for _, write := range []bool{true, false} {
				for i := range 16 {
					var op host.Op
					data := out[i*most:][:size]
					slba := uint64(i * each / 512)
					if write {
						pattern(data, uint32(round*16+i))
						op.Write(1, slba, uint32(size/512), data, 0)
					} else {
						op.Read(1, slba, uint32(size/512), in[i*most:][:size])
					}
					testutil.Value(q.Submit(&op))(h.T)
				}
				var done [16]host.Completion
				for q.Outstanding() > 0 {
					h.Must(collect(q, done[:]))
				}
			}
			for i := range 16 {
				testutil.Equal(t, Differ(in[i*most:][:size], out[i*most:][:size]), "",
					"%d bytes, command %d", size, i)
			}
		}
		if l := h.Target.Limits(); len(l) != 1 || l[0].Waits == 0 {
			t.Errorf("nothing has waited: %+v", l)
		}
	})
}

// TestAbortAndDisconnectAtLimit: commands that wait at a limit are aborted, and end with their
// queue. The harness checks for leaked memory.
func TestAbortAndDisconnectAtLimit(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		h.setLimits(limitsOf{namespace: qos.Limits{IOPS: 1}})
		c := h.Dial(v)
		q := h.Open(c, 1, 33)
		buf := h.Buffer(c, 32<<10)
		var cids []uint16
		for i := range 32 {
			var op host.Op
			if size := []int{4096, 32 << 10}[i/2%2]; i%2 == 0 {
				op.Read(1, 0, uint32(size/512), buf[:size])
			} else {
				op.Write(1, 0, uint32(size/512), buf[:size], 0)
			}
			cid := testutil.Value(q.Submit(&op))(h.T)
			cids = append(cids, cid)
		}
		h.Until("a command completes", func() bool {
			var done [1]host.Completion
			n := testutil.Value(q.Poll(done[:]))(h.T)
			return n > 0
		})
		aborted := 0
		for _, cid := range cids[16:24] {
			ok := testutil.Value(hosttest.Abort(testutil.Context(t), c, 1, cid))(h.T)
			if !ok {
				continue // its data has not arrived yet
			}
			aborted++
			h.Until("the aborted command completes", func() bool {
				var done [1]host.Completion
				n := testutil.Value(q.Poll(done[:]))(h.T)
				return n > 0 && done[0].CQE.CID() == cid &&
					done[0].Status()&^nvme.More == nvme.AbortRequested
			})
		}
		testutil.True(t, aborted != 0, "nothing was aborted")
	})
}

// TestNoAllocationsAtLimit: I/O below a limit allocates nothing, and waiting commands only allocate
// timers.
func TestNoAllocationsAtLimit(t *testing.T) {
	const commands = 4000
	for _, tc := range []struct {
		name  string
		rate  int64 // IOPS
		count func(runs int, fn func()) float64
		runs  int
		most  float64
	}{
		{"below", 1 << 30, testutil.AllocsPerRun, 1, 0},
		{"waiting", 20_000, testing.AllocsPerRun, 3, commands / 4}, // longer than the burst
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := New(t, Options{})
			h.setLimits(limitsOf{
				namespace: qos.Limits{IOPS: tc.rate},
				subsystem: qos.Limits{Bandwidth: 1 << 50},
			})
			c := h.Dial(Plain[0])
			q := h.Open(c, 1, 33)
			buf, done := h.Buffer(c, 4096), make([]host.Completion, 32)
			var op host.Op
			run := func() {
				for range commands {
					for q.Free() == 0 {
						h.Must(collect(q, done))
					}
					op.Read(1, 0, 8, buf)
					testutil.Value(q.Submit(&op))(t)
				}
				for q.Outstanding() > 0 {
					h.Must(collect(q, done))
				}
			}
			run()
			run()
			got := tc.count(tc.runs, run)
			testutil.True(t, got <= tc.most, "%.0f allocations in %d commands, want at most %.0f",
				got, commands, tc.most)
			t.Logf("%.0f allocations in %d commands", got, commands)
		})
	}
}

// pump keeps reads in flight on a queue.
type pump struct {
	q     *host.Queue
	nsid  uint32
	data  [][]byte // per slot
	idle  []int    // slots
	done  []host.Completion
	reads int // completed
}

func newPump(q *host.Queue, memory []byte, depth int) *pump {
	p := &pump{q: q, nsid: 2, done: make([]host.Completion, depth)}
	size := len(memory) / depth
	for i := range depth {
		p.data = append(p.data, memory[i*size:(i+1)*size])
		p.idle = append(p.idle, i)
	}
	return p
}

// step submits reads in all idle slots if more is set, and processes completions.
func (p *pump) step(t *testing.T, more bool) {
	const blockSize, blocks = 4096, 64 << 20 / 4096
	for more && len(p.idle) > 0 {
		slot := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		n := uint64(len(p.data[slot]) / blockSize)
		var op host.Op
		op.Read(p.nsid, uint64(p.reads)*n%(blocks-n), uint32(n), p.data[slot])
		op.Token = uint64(slot)
		testutil.Value(p.q.Submit(&op))(t)
	}
	n := testutil.Value(p.q.Poll(p.done))(t)
	for i := range p.done[:n] {
		testutil.MustTrue(t, p.done[i].Status().OK(), "%v", p.done[i].Status())
		p.reads++
		p.idle = append(p.idle, int(p.done[i].Token))
	}
}
