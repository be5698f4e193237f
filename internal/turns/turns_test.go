package turns

import (
	"bytes"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// queue is a pool with jobs that the test begins.
type queue struct {
	Pool
	pending sync.WaitGroup
	order   []byte // of jobs done
	nice    []int  // of the threads of jobs
}

func (q *queue) add(who byte, known bool) *Job {
	q.mu.Lock()
	q.workers = MaxWorkers()
	q.mu.Unlock()
	q.pending.Add(1)
	j := &Job{
		Known: known, Done: q.pending.Done,
		Run: func() { q.order, q.nice = append(q.order, who), append(q.nice, nice()) },
	}
	j.From(netip.AddrFrom4([4]byte{192, 0, 2, who}))
	q.Submit(j)
	return j
}

// run does all jobs with one worker, and returns when it has ended.
func (q *queue) run() []byte {
	q.order, q.nice = nil, nil
	go q.work(q.next(), !q.Prompt)
	q.pending.Wait()
	for ended := false; !ended; runtime.Gosched() {
		q.mu.Lock()
		ended = q.workers < MaxWorkers()
		q.mu.Unlock()
	}
	return q.order
}

// TestPool: networks take turns, known ones first.
func TestPool(t *testing.T) {
	var q queue
	for range 3 {
		q.add(1, false)
	}
	q.add(2, false)
	q.add(2, false)
	q.add(3, true)
	for _, from := range []byte{2, 4} {
		canceled := q.add(from, false)
		testutil.True(t, q.Cancel(canceled) && !q.Cancel(canceled), "a job is not canceled once")
		q.pending.Done()
	}
	testutil.EqualSlices(t, q.run(), []byte{3, 1, 2, 1, 2, 1}, "")
	testutil.True(t, len(q.waiting) == 0, "addresses are left")
}

// TestOverload: once the oldest has waited for too long, the newest has its turn.
func TestOverload(t *testing.T) {
	var q queue
	for who := range byte(6) {
		if j := q.add(who, false); who < 3 {
			j.since = time.Now().Add(-2 * mostFair)
		}
	}
	testutil.EqualSlices(t, q.run(), []byte{5, 4, 3, 2, 1, 0}, "")
}

// TestNetworks: addresses of a /64 take turns with others as one network.
func TestNetworks(t *testing.T) {
	var q queue
	for i := range byte(4) {
		q.workers = MaxWorkers()
		for from, who := range map[netip.Addr]byte{
			netip.AddrFrom16([16]byte{0x20, 1, 7: 1, 15: i}): 1,
			netip.AddrFrom16([16]byte{0x20, 1, 7: 2, 15: 1}): 2,
		} {
			if i < 2 || who == 1 {
				q.pending.Add(1)
				j := &Job{
					Done: q.pending.Done, Run: func() { q.order = append(q.order, who) },
				}
				j.From(from)
				q.Submit(j)
			}
		}
	}
	q.order = nil
	if order := q.run(); bytes.Count(order[:4], []byte{2}) != 2 || len(order) != 6 {
		t.Errorf("%v: no turns", order)
	}
}

// TestOthersTurn: a known host that never stops sending jobs keeps nobody out.
func TestOthersTurn(t *testing.T) {
	var q queue
	for range 3 * othersTurn {
		q.add(3, true)
	}
	q.add(1, false)
	order := q.run()
	testutil.True(t, bytes.IndexByte(order, 1) == othersTurn && len(order) == 3*othersTurn+1,
		"a host that does not stop keeps others out: %v", order)
}

// nice returns the nice value of the calling thread, which the system call encodes as 1 to 40.
func nice() int {
	p, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
	return 20 - p
}

// TestPriority: jobs give way to other threads, until they have waited for too long.
func TestPriority(t *testing.T) {
	usual := nice()
	var q queue
	for i := range 4 {
		if j := q.add(1, false); i%2 == 1 {
			j.since = time.Now().Add(-patience)
		}
	}
	q.run()
	low := max(usual, 10)
	testutil.True(t, slices.Equal(q.nice, []int{low, usual, low, usual}), "nice values %v", q.nice)
	// Jobs have waited without interruption, although each of these is new.
	for range 3 {
		q.add(1, false)
	}
	q.since = time.Now().Add(-2 * patience)
	q.run()
	testutil.True(t, slices.Equal(q.nice, []int{usual, usual, max(usual, 10)}),
		"nice values %v of a pool that is behind", q.nice)
	q.Prompt = true
	q.add(1, false)
	q.run()
	testutil.EqualSlices(t, q.nice, []int{usual}, "nice values of prompt jobs")
}
