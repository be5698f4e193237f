package isolation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	e := newEnv(t, link, nil)
	targets, each, n := []*env{e}, window{commands: 500}, 1
	if testutil.Soaking() {
		targets = []*env{newEnv(t, link, nil), e}
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

// TestMatrix has the rows of culprits on RDMA. The packages below have those on TCP.
func TestMatrix(t *testing.T) { Matrix(t, nvme.TransportRDMA, Host, Stranger, Device) }

// TestChosen: no culprit that Matrix does not know is left out silently.
func TestChosen(t *testing.T) {
	all := []row{{culprit: Host, links: onTCP}, {culprit: Device, links: onBoth}}
	list, err := chosen(all, nvme.TransportRDMA, []string{Device})
	testutil.True(t, err == nil && len(list) == 1, "%v, %v", list, err)
	for _, culprits := range [][]string{{"hosts"}, {Host}, {Device, Stranger}} {
		_, err := chosen(all, nvme.TransportRDMA, culprits)
		testutil.Fails(t, err, "there are no rows", "%v", culprits)
	}
	_, err = chosen([]row{{name: "x", culprit: "guest"}}, nvme.TransportTCP, nil)
	testutil.Fails(t, err, `x: no test runs rows of the culprit "guest"`, "")
}

func TestLatencies(t *testing.T) {
	for d := time.Duration(1); d < time.Hour; d += d/7 + 1 {
		if up := upper(bucket(d)); up < d || up > d+max(d, 1<<bucketBits<<bucketBits)>>bucketBits {
			t.Fatalf("%v is in a bucket up to %v", d, up)
		}
	}
	var l latencies
	for i := range 1000 {
		l.note(time.Duration(i+1) * time.Microsecond)
	}
	got, most := l.p99(), l.worst()
	testutil.True(t, got >= 991*time.Microsecond && got <= 1024*time.Microsecond &&
		most >= time.Millisecond, "p99 %v, longest %v", got, most)
}

// TestStoppedTarget: a target process that is stopped (SIGSTOP) for longer than the keep alive
// timeout of its hosts does not blame them for it. When it continues, no command has failed, no
// connection ends, and hosts read the data that they wrote.
func TestStoppedTarget(t *testing.T) {
	const kato, pause = time.Second, 1250 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	cmd, addr, err := startChild(ctx, asTarget)
	testutil.Must(t, err)
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
	})
	e := &env{t: t, link: nvme.TransportTCP, addrs: map[nvme.TransportType]netip.AddrPort{
		nvme.TransportTCP: netip.MustParseAddrPort(addr),
	}}
	v := newVictimOver(e, e.link, 0, kato)
	_, all := v.run(few)
	e.must(cmd.Process.Signal(syscall.SIGSTOP))
	resumed := make(chan error, 1)
	time.AfterFunc(pause, func() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err == nil && !strings.Contains(string(stat), ") T ") {
			err = fmt.Errorf("the target did not stand still: %s", stat)
		}
		resumed <- errors.Join(err, cmd.Process.Signal(syscall.SIGCONT))
	})
	_, o := v.run(window{length: pause + kato/2}) // the target checks twice per kato
	all.add(o)
	e.must(<-resumed)
	testutil.True(t, len(all.failed)+len(all.ended) == 0,
		"failed commands: %v; ended connections: %v", all.failed, all.ended)
	testutil.Check(t, v.sweep())
}

func TestMain(m *testing.M) { Main(m) }
