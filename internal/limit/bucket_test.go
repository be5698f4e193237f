package limit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const second = int64(time.Second)

// flow is a flow of a host on a reactor, in simulated time.
type flow struct {
	leases []*Lease
	cost   int64 // of a command, in each bucket
	want   int   // commands left, -1: unlimited
	every  int64 // maximum delay of a timer of the reactor
	due    int64
	done   []int64 // the times of commands
}

// newFlow makes a flow of commands with the same cost in every bucket.
func newFlow(host string, cost int64, want int, every int64, buckets ...*Bucket) *flow {
	f := &flow{cost: cost, want: want, every: every}
	for _, b := range buckets {
		f.leases = append(f.leases, b.Join(host, second))
	}
	return f
}

// step sends commands as far as the leases allow.
func (f *flow) step(now int64, r *rand.Rand) {
	for f.want != 0 && now >= f.due {
		for _, l := range f.leases {
			if wait := l.Ready(f.cost, now); wait > 0 {
				f.due = now + wait + r.Int64N(f.every)
				return
			}
		}
		for _, l := range f.leases {
			l.Spend(f.cost)
		}
		f.done = append(f.done, now)
		if f.want > 0 {
			f.want--
		}
	}
}

// run simulates flows for a time.
func run(t int64, flows []*flow, each func(now int64)) {
	r := rand.New(rand.NewPCG(1, 2))
	for now := second; now < second+t; now += second / 4000 {
		if each != nil {
			each(now)
		}
		for _, i := range r.Perm(len(flows)) {
			flows[i].step(now, r)
		}
	}
}

// extremes returns the number of commands in the emptiest and the fullest window of 10 s, without
// the first second.
func extremes(flows []*flow, t int64) (least, most int) {
	const window = 10
	var slots []int // slots of 100 ms
	for range t / (second / 10) {
		slots = append(slots, 0)
	}
	for _, f := range flows {
		for _, at := range f.done {
			slots[(at-second)/(second/10)]++
		}
	}
	least, most = 1<<60, 0
	for i := 10; i+window*10 <= len(slots); i++ {
		n := 0
		for _, c := range slots[i : i+window*10] {
			n += c
		}
		least, most = min(least, n), max(most, n)
	}
	return least, most
}

func within(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	testutil.True(t, got >= want-tolerance && got <= want+tolerance,
		"%s: %.0f, want %.0f within %.1f", what, got, want, tolerance)
}

// TestRates: in every window of 10 s the limit holds within 3 %, or one command, for every rate, on
// one reactor and on several.
func TestRates(t *testing.T) {
	for _, rate := range []int64{1, 3, 10, 333, 1000, 25_000, 200_000} {
		for _, reactors := range []int{1, 4, 16} {
			t.Run(fmt.Sprintf("%d/%d", rate, reactors), func(t *testing.T) {
				b := NewBucket(rate, 100*time.Millisecond, nil)
				var flows []*flow
				for range reactors {
					flows = append(flows, newFlow("h", 1, -1, 3e6, b))
				}
				run(15*second, flows, nil)
				least, most := extremes(flows, 15*second)
				want := 10 * float64(rate)
				within(t, "emptiest window", float64(least), want, max(want*0.03, 1))
				within(t, "fullest window", float64(most), want, max(want*0.03, 1))
			})
		}
	}
}

// TestLargeCommands: a command larger than the burst passes, and later commands wait for the debt.
func TestLargeCommands(t *testing.T) {
	b := NewBucket(100<<10, 100*time.Millisecond, nil)
	f := newFlow("h", 1<<20, -1, 1, b)
	run(60*second, []*flow{f}, nil)
	within(t, "commands of 1 MiB in 60 s at 100 KiB/s", float64(len(f.done)), 60*100./1024, 1)
}

// TestBurst: after a pause, the tokens of the burst pass at once, and no more.
func TestBurst(t *testing.T) {
	b := NewBucket(1000, 200*time.Millisecond, nil)
	f := newFlow("h", 1, 0, 1, b)
	run(20*second, []*flow{f}, func(now int64) {
		if now == 10*second {
			f.want = 5000
		}
	})
	at := func(n int) float64 { return float64(f.done[n]-f.done[0]) / 1e6 }
	within(t, "time of the first 200, in ms", at(199), 0, 1)
	within(t, "time of 1200, in ms", at(1199), 1000, 10)
}

// TestWorkConserving: one host gets the tokens that another leaves, and one of many flows can get
// all.
func TestWorkConserving(t *testing.T) {
	b := NewBucket(10_000, 100*time.Millisecond, nil)
	small := newFlow("small", 1, 0, 3e6, b)
	big := newFlow("big", 1, -1, 3e6, b)
	run(10*second, []*flow{small, big}, func(now int64) {
		if now%(second/100) == 0 {
			small.want += 10 // 1000 a second
		}
	})
	within(t, "what the small host asked for", float64(len(small.done)), 10_000, 100)
	within(t, "what the other got", float64(len(big.done)), 90_000, 3000)
}

// TestFair: hosts that want more get equal parts, independent of the number of their flows and
// reactors, the size of their commands, and late timers.
func TestFair(t *testing.T) {
	b := NewBucket(100<<20, 100*time.Millisecond, nil)
	hosts := []struct {
		flows int
		cost  int64
		late  int64
	}{{1, 4 << 10, 1}, {8, 4 << 10, 8e6}, {2, 128 << 10, 2e6}, {4, 512, 30e6}}
	sent := make([]float64, len(hosts))
	var flows []*flow
	for i, h := range hosts {
		for range h.flows {
			flows = append(flows, newFlow(fmt.Sprint(i), h.cost, -1, h.late, b))
		}
	}
	run(10*second, flows, nil)
	i := 0
	for n, h := range hosts {
		perFlow := []float64{}
		for range h.flows {
			perFlow = append(perFlow, float64(int64(len(flows[i].done))*h.cost))
			sent[n] += perFlow[len(perFlow)-1]
			i++
		}
		within(t, fmt.Sprintf("host %d", n), sent[n]/(1<<20), 250, 25)
		for _, f := range perFlow {
			within(t, fmt.Sprintf("a flow of host %d", n), f/(1<<20), 250/float64(h.flows), 50)
		}
	}
}

// TestSeveral: a flow that reaches one limit leaves the unused part of its other limits to others.
func TestSeveral(t *testing.T) {
	shared := NewBucket(1000, 100*time.Millisecond, nil)
	own := NewBucket(10, 100*time.Millisecond, nil)
	limited := newFlow("a", 1, -1, 1e6, shared, own)
	other := newFlow("b", 1, -1, 1e6, shared)
	run(10*second, []*flow{limited, other}, nil)
	within(t, "limited host", float64(len(limited.done)), 100, 3)
	within(t, "other host", float64(len(other.done)), 9900+100, 300)
}

// TestBelow: hosts that use less than the limit never wait, in bursts or evenly.
func TestBelow(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, tc := range []struct {
		name         string
		rate         int64
		hosts        int
		burst, every time.Duration
		commands     int // of one host, in each interval
	}{
		{"many", 20_000, 256, 10 * time.Millisecond, 16 * time.Millisecond, 1},
		{"pauses", 100_000, 10, 100 * time.Millisecond, 11 * time.Millisecond, 100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := NewBucket(tc.rate, tc.burst, nil)
			var flows []*flow
			due := map[*flow]int64{}
			for i := range tc.hosts {
				f := newFlow(fmt.Sprint(i), 1, 0, 1e6, b)
				due[f], flows = second+r.Int64N(int64(tc.every)), append(flows, f)
			}
			waited := 0
			run(3*second, flows, func(now int64) {
				for _, f := range flows {
					waited += f.want
					if now >= due[f] {
						due[f] += int64(tc.every)
						f.want += tc.commands
					}
				}
			})
			testutil.True(t, waited <= 0, "commands waited below the limit: %d", waited)
		})
	}
}

// TestNoSavedTurns: a host that comes back after a pause gets its part, but not the part that it
// left to others meanwhile.
func TestNoSavedTurns(t *testing.T) {
	b := NewBucket(1000, 100*time.Millisecond, nil)
	steady, back := newFlow("steady", 1, -1, 1e6, b), newFlow("back", 1, 1, 1e6, b)
	run(10*second, []*flow{steady, back}, func(now int64) {
		if now == 6*second {
			back.want = -1
		}
	})
	within(t, "commands in 5 s, shared", float64(len(back.done)), 2500, 100)
}

// TestInherit: a bucket with another rate takes over the debt, in tokens.
func TestInherit(t *testing.T) {
	old := NewBucket(10, 100*time.Millisecond, nil)
	l := old.Join("h", second)
	wait := l.Ready(100, second)
	testutil.MustTrue(t, wait <= 0, "%v", wait)
	now := NewBucket(1000, 100*time.Millisecond, NewBucket(5, time.Second, old))
	if wait := now.Join("h", second).Ready(1, second); wait < 90e6 || wait > 100e6 {
		t.Errorf("a debt of about 100 tokens takes %v at 1000 a second", time.Duration(wait))
	}
}

// TestLeave: nothing remains of a host without flows.
func TestLeave(t *testing.T) {
	b := NewBucket(10, time.Second, nil)
	one, two := b.Join("h", second), b.Join("h", second)
	one.Ready(30, second)
	one.Leave(second)
	wait := two.Ready(1, second)
	testutil.True(t, wait <= 0, "what was leased did not go back: wait %v", time.Duration(wait))
	two.Leave(second)
	n := b.Users() + len(b.hosts.all) + len(b.hosts.members())
	testutil.True(t, n == 0, "%d left", n)
}

// TestRandom: random rates, bursts and flows with pauses; no window of 10 s exceeds the rate by
// more than 3 %.
func TestRandom(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		rate := int64(1) << r.IntN(16)
		b := NewBucket(rate, time.Duration(10+r.IntN(100))*time.Millisecond, nil)
		var flows []*flow
		for range 1 + r.IntN(8) {
			flows = append(flows, newFlow(fmt.Sprint(r.IntN(3)), 1, 0, 1+r.Int64N(5e6), b))
		}
		run(15*second, flows, func(now int64) {
			for _, f := range flows {
				if now%(second/10) == 0 && r.IntN(3) == 0 {
					f.want += int(rate/5) + 1
				}
			}
		})
		_, most := extremes(flows, 15*second)
		if limit := 10*float64(rate)*1.03 + 1; float64(most) > limit {
			t.Errorf("seed %d: %d commands in 10 s at %d a second", seed, most, rate)
		}
	}
}

// TestManyHosts: a call looks at some of the hosts that share a limit, and one of them gets all
// that the others leave.
func TestManyHosts(t *testing.T) {
	b := NewBucket(10_000, 100*time.Millisecond, nil)
	list := make([]*turn, 16*lookMost)
	for i := range list {
		list[i] = new(turn)
	}
	b.hosts.list.Store(&list)
	b.hosts.lowest(second)
	testutil.Equal(t, b.hosts.search.at, lookMost, "hosts that a call has looked at")
	busy := newFlow("busy", 1, -1, 1, b)
	run(5*second, []*flow{busy}, nil)
	within(t, "commands of the busy host", float64(len(busy.done)), 51_000, 500)
}

func TestReadyDoesNotAllocate(t *testing.T) {
	l := NewBucket(1_000_000, 100*time.Millisecond, nil).Join("h", second)
	now := second
	if n := testing.AllocsPerRun(1000, func() {
		now += 1000
		if l.Ready(1, now) == 0 {
			l.Spend(1)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkReady(b *testing.B) {
	l := NewBucket(1<<40, 100*time.Millisecond, nil).Join("h", second)
	for i := range b.N {
		if l.Ready(4096, second+int64(i)*100) == 0 {
			l.Spend(4096)
		}
	}
}
