package target

import (
	"fmt"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// load sends the same kind of command again and again.
type load struct{ done, failed, depth int }

// start keeps depth commands of new outstanding on a queue.
func (l *load) start(r *harness, q *fabrictest.Queue, depth int, make func() *fabrictest.Command) {
	l.depth = depth
	r.ok(q, command(nvme.NVMFlush, 1, nil)) // opens the channel
	for range depth {
		c := make()
		c.Then = func() {
			if l.done++; !c.CQE.Status().OK() {
				l.failed++
			}
			if l.depth > 0 {
				c.Reset()
				r.must(q.Send(c))
			}
		}
		r.must(q.Send(c))
	}
}

func readBlocks(n uint32) func() *fabrictest.Command {
	return func() *fabrictest.Command { return rw(nvme.NVMRead, 1, 0, n, make([]byte, n*512)) }
}

func expect(t *testing.T, what string, got int, want, tolerance float64) {
	t.Helper()
	if f := float64(got); f < want*(1-tolerance)-1 || f > want*(1+tolerance)+1 {
		t.Errorf("%s: %d, want %.0f within %.0f %%", what, got, want, 100*tolerance)
	}
}

// TestLimits: each limit holds within 3 %, on one reactor and on four.
func TestLimits(t *testing.T) {
	t.Parallel() // it computes
	for _, tc := range []struct {
		name   string
		limits qos.Limits
		blocks uint32
		want   float64       // commands per second
		over   time.Duration // 10 s with make soak
	}{
		{"1 IOPS", qos.Limits{IOPS: 1}, 8, 1, 10 * time.Second},
		{"777 IOPS", qos.Limits{IOPS: 777}, 1, 777, 2 * time.Second},
		{"20000 IOPS", qos.Limits{IOPS: 20_000}, 1, 20_000, 100 * time.Millisecond},
		{"1 MiB/s", qos.Limits{Bandwidth: 1 << 20}, 64, 32, 5 * time.Second},
		{"both", qos.Limits{IOPS: 500, Bandwidth: 1 << 20}, 8, 256, 2 * time.Second},
	} {
		for _, object := range []string{"host", "subsystem", "namespace"} {
			for _, reactors := range []int{1, 4} {
				if reactors == 1 && object != "subsystem" {
					continue // the objects differ in how reactors share a limit
				}
				t.Run(fmt.Sprintf("%s/%s/%d", tc.name, object, reactors), func(t *testing.T) {
					sub := ramSubsystem(t, 1)
					switch object {
					case "subsystem":
						sub.Limits = tc.limits
					case "namespace":
						sub.Namespaces[0].Limits = tc.limits
					}
					over := tc.over
					if testutil.Soaking() {
						over = 10 * time.Second
					}
					r := newHarness(t, reactors, sub)
					if object == "host" {
						r.target.SetHostLimits(testHost, tc.limits)
					}
					h := r.connectHost(reactors)
					var l load
					for _, q := range h.io {
						l.start(r, q, 16, readBlocks(tc.blocks))
					}
					r.w.Advance(min(over, time.Second)) // past the burst
					before := l.done
					r.w.Advance(over)
					expect(t, "commands", l.done-before, over.Seconds()*tc.want, 0.03)
					testutil.True(t, l.failed <= 0, "%d failed", l.failed)
					l.depth = 0
					i := r.target.Limits()
					testutil.True(t, len(i) == 1 && i[0].IOPS == tc.limits.IOPS &&
						i[0].Bandwidth == tc.limits.Bandwidth &&
						i[0].BurstSeconds == tc.limits.Burst.Seconds() && i[0].Waits != 0 &&
						i[0].WaitSeconds != 0, "%+v", i)
				})
			}
		}
	}
}

// TestLimitIsShared: two hosts that reach a limit get half of it each, for any number of queues. If
// one wants less, the other gets the rest.
func TestLimitIsShared(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.Limits = qos.Limits{IOPS: 1000}
	r, many := joined(t, 4, 4, sub)
	one := r.connectOther()
	var a, b load
	for _, q := range many.io {
		a.start(r, q, 32, readBlocks(1))
	}
	b.start(r, one.io[0], 32, readBlocks(1))
	r.w.Advance(4 * time.Second)
	expect(t, "host with four queues", a.done, 2000, 0.05)
	expect(t, "host with one queue", b.done, 2000, 0.05)
	a.depth = 0
	r.w.Advance(time.Second)
	before := b.done
	r.w.Advance(2 * time.Second)
	expect(t, "the other one alone", b.done-before, 2000, 0.03)
	b.depth = 0
}

// TestWaitsWithNothing: commands that wait at a limit have no memory of the pool or of the
// namespace, except for in-capsule data, and no IO at the device. They are not given up. Flush and
// commands for other namespaces go on.
func TestWaitsWithNothing(t *testing.T) {
	sub := ramSubsystem(t, 2)
	sub.Namespaces[0].Limits = qos.Limits{IOPS: 1}
	sub.Namespaces[0].Timeout = time.Second
	r, h := joined(t, 1, 2, sub)
	h.io[1].NoZeroCopy = true
	var all []*fabrictest.Command
	send := func(c *fabrictest.Command) {
		r.send(h.io[len(all)%2], c)
		all = append(all, c)
	}
	r.ok(h.io[0], readBlocks(8)()) // the debt
	for range 2 {
		for range 2 {
			send(readBlocks(8)())
			send(rw(nvme.NVMWrite, 1, 0, 8, make([]byte, 4096)))
			send(rw(nvme.NVMWriteZeroes, 1, 0, 8, nil))
			c := rw(nvme.NVMWrite, 1, 0, 8, make([]byte, 4096))
			c.InCapsule = true
			send(c)
		}
		send(dsm(1, true, [2]uint64{0, 8}))
	}
	r.w.Advance(800 * time.Millisecond)
	ch := r.raw[0].channels[0]
	n := r.w.Reactors[0].Memory().Usage().Used
	testutil.True(t, n == 0, "what waits has %d bytes", n)
	testutil.Equal(t, ch.State().Busy, dispatch.State{}.Busy, "what waits")
	r.ok(h.io[0], command(nvme.NVMFlush, 1, nil))
	r.ok(h.io[0], rw(nvme.NVMRead, 2, 0, 8, make([]byte, 4096)))
	for i := range all {
		r.w.Advance(time.Second)
		for j, c := range all {
			testutil.MustEqual(t, c.Done, (j <= i), "after %d seconds, command %d is done", i+1, j)
		}
	}
	for i, c := range all {
		testutil.Equal(t, c.CQE.Status(), nvme.Success, "command %d", i)
	}
}

// waiting connects a host and has commands wait at a limit: reads, and writes with their data in
// the capsule.
func waiting(r *harness, n int) (*host, []*fabrictest.Command) {
	h := r.connectHost(1)
	r.ok(h.io[0], readBlocks(8)())
	var all []*fabrictest.Command
	for i := range n {
		c := readBlocks(8)()
		if i%2 > 0 {
			c = rw(nvme.NVMWrite, 1, 0, 8, make([]byte, 4096))
			c.InCapsule = true
		}
		all = append(all, r.send(h.io[0], c))
	}
	r.w.Settle()
	return h, all
}

func limitedSubsystem(t *testing.T) subsystems.Config {
	sub := ramSubsystem(t, 1)
	sub.Namespaces[0].Limits = qos.Limits{IOPS: 1}
	return sub
}

func (r *harness) allDone(all []*fabrictest.Command, want nvme.Status) {
	r.t.Helper()
	for i, c := range all {
		r.until(fmt.Sprintf("command %d completes", i), func() bool { return c.Done })
		testutil.Equal(r.t, c.CQE.Status()&^nvme.More, want, "command %d", i)
	}
}

// TestExchangeAtLimit: commands that wait at a limit find the namespace as it is when their turn
// comes, and do not hold up its change.
func TestExchangeAtLimit(t *testing.T) {
	smaller := ramDevice(t, 2048, 512)
	r := newHarness(t, 2, limitedSubsystem(t))
	_, all := waiting(r, 4)
	r.during(func() error {
		return r.target.UpdateNamespace(testSub,
			namespaces.Config{NSID: 1, Limits: qos.Limits{IOPS: 1}},
			func(backend.Device) (backend.Device, error) { return smaller, nil })
	})
	r.w.Advance(4500 * time.Millisecond)
	r.allDone(all, outOfRange)
}

// TestChangeLimits: limits change while commands wait at them.
func TestChangeLimits(t *testing.T) {
	t.Parallel() // it computes
	sub := ramSubsystem(t, 1)
	r := newHarness(t, 2, sub)
	set := func(object string, l qos.Limits) {
		switch object {
		case "host":
			r.target.SetHostLimits(testHost, l)
		case "subsystem":
			_, err := r.target.UpdateSubsystem(
				subsystems.Config{NQN: testSub, AllowAnyHost: true, Limits: l})
			r.must(err)
		default:
			r.during(func() error {
				return r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 1, Limits: l}, nil)
			})
		}
		r.w.Settle()
	}
	h := r.connectHost(2)
	var l load
	for _, object := range []string{"host", "subsystem", "namespace"} {
		r.run(object, func(t *testing.T) {
			set(object, qos.Limits{IOPS: 500})
			for _, q := range h.io {
				l.start(r, q, 16, readBlocks(1))
			}
			for _, rate := range []int64{100, 1000, 10, 300} {
				set(object, qos.Limits{IOPS: rate})
				r.w.Advance(2 * time.Second)
				before, over := l.done, max(1, min(5, 1000/rate)) // seconds
				r.w.Advance(time.Duration(over) * time.Second)
				expect(t, fmt.Sprint(rate), l.done-before, float64(over*rate), 0.03)
			}
			set(object, qos.Limits{IOPS: 1})
			r.w.Advance(time.Second)
			l.depth = 0
			set(object, qos.Limits{})
			for _, h := range r.raw {
				testutil.True(t, h.gate.Idle(), "commands wait without a limit")
			}
		})
	}
	n := len(r.target.Limits())
	testutil.True(t, n == 0 && l.failed == 0, "%d limits, %d commands failed", n, l.failed)
}

// TestLimitsForget: the buckets of a limit know the hosts that use it, and hosts that nobody limits
// have nothing.
func TestLimitsForget(t *testing.T) {
	sub := ramSubsystem(t, 1)
	r := newHarness(t, 1, sub)
	r.target.SetHostLimits(otherHost, qos.Limits{IOPS: 1000})
	h := r.connectHost(1)
	r.ok(h.io[0], readBlocks(8)())
	testutil.True(t, !r.raw[0].shares.Hosts[testKey].Flows[0].Limits.Limited(),
		"a host without limits has some")
	o := r.connectOther()
	r.ok(o.io[0], readBlocks(8)())
	limiter := r.target.shared.Hosts.Limiter(otherHost)
	testutil.Equal(t, limiter.Users(), 1, "users")
	o.hangUp()
	testutil.Equal(t, limiter.Users(), 0, "users after the host has left")
}

// TestSeveralLimits: commands that wait at the limit of a namespace, in any number, leave the rest
// of the limit of the subsystem to others.
func TestSeveralLimits(t *testing.T) {
	t.Parallel() // it computes
	for _, tc := range []struct {
		all, slow qos.Limits
		seconds   float64
		want      [2]float64 // commands per second
	}{
		{qos.Limits{IOPS: 200}, qos.Limits{IOPS: 4}, 10, [2]float64{4, 196}},
		{
			qos.Limits{IOPS: 1000, Burst: qos.MinBurst},
			qos.Limits{IOPS: 300},
			2,
			[2]float64{300, 700},
		},
		{qos.Limits{Bandwidth: 1 << 20}, qos.Limits{Bandwidth: 32 << 10}, 5, [2]float64{8, 248}},
	} {
		sub := ramSubsystem(t, 2)
		sub.Limits, sub.Namespaces[0].Limits = tc.all, tc.slow
		r := newHarness(t, 4, sub)
		var slow, other load
		for i := range 8 {
			h := r.connectHost(4, func(c *connectArgs) { c.host = fmt.Sprint(testHost, i) })
			for _, q := range h.io {
				slow.start(r, q, 4, readBlocks(8))
			}
		}
		h := r.connectHost(1)
		r.ok(h.io[0], command(nvme.NVMFlush, 2, nil)) // opens the channel
		other.start(r, h.io[0], 16, func() *fabrictest.Command {
			return rw(nvme.NVMRead, 2, 0, 8, make([]byte, 8*512))
		})
		r.w.Advance(2 * time.Second)
		slow.done, other.done = 0, 0
		r.w.Advance(time.Duration(tc.seconds) * time.Second)
		expect(t, "at the limit of the namespace", slow.done, tc.seconds*tc.want[0], 0.03)
		expect(t, "at that of the subsystem", other.done, tc.seconds*tc.want[1], 0.03)
		slow.depth, other.depth = 0, 0
	}
}

// TestCopyAtLimit: limits count the bytes that Compare, Verify and Copy read and write.
func TestCopyAtLimit(t *testing.T) {
	const blocks = 2048 // 1 MiB
	for name, tc := range map[string]struct {
		make func() *fabrictest.Command
		want float64 // seconds of each
	}{
		"verify": {func() *fabrictest.Command { return rw(nvme.NVMVerify, 1, 0, blocks, nil) }, 1},
		"compare": {func() *fabrictest.Command {
			return rw(nvme.NVMCompare, 1, 0, 256, make([]byte, 256*512))
		}, 1. / 8},
		"copy": {func() *fabrictest.Command {
			return copyTo(blocks, nvme.CopyRanges, source{1, 0, blocks})
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			sub := copySubsystem(t)
			sub.Namespaces[0].Limits = qos.Limits{Bandwidth: 1 << 20}
			r, h := joined(t, 1, 1, sub)
			var l load
			l.start(r, h.io[0], 4, tc.make)
			r.w.Advance(10 * time.Second)
			before := l.done
			r.w.Advance(100 * time.Second)
			expect(t, "commands in 100 s", l.done-before, 100/tc.want, 0.03)
			testutil.True(t, l.failed <= 0, "%d failed", l.failed)
			l.depth = 0
		})
	}
}
