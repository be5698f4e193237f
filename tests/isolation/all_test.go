package isolation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// rounds returns the number of rounds of TestAllCulprits on each transport: as many rounds of about
// 75 s as fit NVMF_ISOLATION_SECONDS, or two if it is not set.
func rounds(t *testing.T) int {
	s := os.Getenv("NVMF_ISOLATION_SECONDS")
	if s == "" {
		return 2
	}
	n := testutil.Value(strconv.Atoi(s))(t)
	return max(1, n/len(onBoth)/75)
}

// TestAllCulprits: beside all culprits, which come and go at random, two victims keep their service
// and their data. NVMF_ISOLATION_SEED repeats a run as far as possible.
//
// The culprits also take CPU time that the loops of the victims need, since everything is one
// process. Therefore, with soak, the latencies are compared with a run in which the same culprits
// attack another target.
func TestAllCulprits(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("NVMF_ISOLATION_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		testutil.MustTrue(t, err == nil, "%v", err)
	}
	t.Logf("NVMF_ISOLATION_SEED=%d", seed)
	for _, link := range onBoth {
		t.Run(fmt.Sprint(link), func(t *testing.T) { allCulprits(t, link, seed) })
	}
}

func allCulprits(t *testing.T, link nvme.TransportType, seed uint64) {
	e := newEnv(t, kind{link: link}, nil)
	targets, each, n := []*env{e}, window{commands: 500}, 1
	if testutil.Soaking() {
		targets = []*env{newEnv(t, kind{link: link}, nil), e}
		each, n = window{length: 30 * time.Second}, rounds(t)
	}
	for _, target := range targets {
		target.log.Limit(1 << 20) // it must not look like a leak of culprits
	}
	victims := []*victim{newVictim(e, 0), newVictim(e, 1)}
	together(victims, few)
	base := e.count()
	var all outcome // alone: while the culprits attack the other target
	var quiet latencies
	turns := map[string]int{}
	for round := range uint64(n) {
		took, o := together(victims, window{each.commands / 4, each.length / 4})
		quiet.add(took)
		o.keepAlives = nil
		all.add(o)
		for _, attacked := range targets {
			ctx, cancel := context.WithCancel(context.Background())
			stop := attacked.startAll(ctx, seed+round)
			took, o = together(victims, each)
			cancel()
			taken := stop()
			if attacked == e {
				o.beside = took
				for name, n := range taken {
					turns[name] += n
				}
			} else {
				o.alone, o.keepAlives = took, nil
			}
			all.add(o)
			e.must(e.settles(fmt.Sprintf("what the culprits of round %d took is given back", round),
				func() error { return e.count().above(base) }))
		}
		testutil.MustEqual(t, all.unbroken(), nil, "round %d", round)
	}
	t.Logf("p99 without culprits %v; beside those of another target for alone: %v; turns: %v",
		quiet.p99(), &all, turns)
	testutil.True(t, len(turns) != 0, "no culprit took anything")
	testutil.Check(t, all.quick(false))
	for _, v := range victims {
		e.must(v.sweep())
	}
}

// together runs the victims at the same time.
func together(victims []*victim, w window) (took latencies, all outcome) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, v := range victims {
		wg.Go(func() {
			of, o := v.run(w)
			mu.Lock()
			defer mu.Unlock()
			took.add(of)
			all.add(o)
		})
	}
	wg.Wait()
	return took, all
}

// longestTurn returns the maximum time for which a culprit works, or pauses. With soak it exceeds
// the time limits of shorten, and a round has about seven turns.
func longestTurn() time.Duration {
	if testutil.Soaking() {
		return 4 * time.Second
	}
	return 300 * time.Millisecond
}

// startAll starts every culprit on the transport of the victims, at random times for random times.
// stop waits for them after the end of ctx, and returns how often each of them took something.
func (e *env) startAll(ctx context.Context, seed uint64) (stop func() map[string]int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	turns := map[string]int{}
	for i, r := range rows() {
		if !r.mayJoin(e.link) {
			continue
		}
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			random := func() time.Duration {
				return time.Duration(rng.Int64N(int64(longestTurn())))
			}
			for sleep(ctx, random()) {
				turn, cancel := context.WithTimeout(ctx, random())
				a := &attack{env: e, ready: make(chan struct{})}
				_ = r.run(turn, a) // beside others it may fail
				if a.took.Load() > 0 {
					mu.Lock()
					turns[r.name]++
					mu.Unlock()
				}
				cancel()
			}
		})
	}
	return func() map[string]int {
		wg.Wait()
		return turns
	}
}

// mayJoin reports whether the row can be part of TestAllCulprits.
func (r *row) mayJoin(link nvme.TransportType) bool {
	for _, l := range r.links {
		if l == link {
			return !r.alone
		}
	}
	return false
}
