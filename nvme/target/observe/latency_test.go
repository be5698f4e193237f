package observe

import (
	"context"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// mailbox is a loop that leaves its posts to the test.
type mailbox struct {
	fabric.Loop
	posts chan func()
}

func (m mailbox) Post(fn func()) { m.posts <- fn }

// TestLatencyReaders: a reactor works for one reader at a time, in small steps. A read that its
// caller has given up in the middle is forgotten.
func TestLatencyReaders(t *testing.T) {
	loop := mailbox{posts: make(chan func(), 100)}
	reader, l := make(Reader, 1), NewLatencies(loop)
	read := func(ctx context.Context) ([]LatencyInfo, error) {
		return reader.Read(ctx, []*Latencies{&l})
	}
	const entries = 4
	share := 0
	for i := range entries {
		ns := &Namespace{SubNQN: "sub", NSID: uint32(i + 1)}
		l.Join("host", &share, ns).Add(&fabric.Request{Stages: [4]int64{2: 9}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, step := range []int{0, 1, 2} {
		gaveUp := make(chan error)
		go func() {
			_, err := read(ctx)
			gaveUp <- err
		}()
		for range step {
			(<-loop.posts)()
		}
		fn := <-loop.posts
		other, end := context.WithCancel(t.Context())
		end()
		if _, err := read(other); err == nil || len(loop.posts) > 0 {
			t.Errorf("%v, %d for another reader", err, len(loop.posts))
		}
		cancel()
		testutil.True(t, <-gaveUp != nil, "no error")
		fn()
		(<-loop.posts)()
		testutil.True(t, l.reads == 0 && len(loop.posts) == 0, "%d reads, %d posts are left",
			l.reads, len(loop.posts))
		ctx, cancel = context.WithCancel(t.Context())
	}
	cancel()
	all := make(chan []LatencyInfo)
	go func() {
		list, _ := read(t.Context())
		all <- list
	}()
	for range 1 + entries {
		(<-loop.posts)()
		testutil.Equal(t, l.reads, 1, "reads")
	}
	(<-loop.posts)()
	list := <-all
	for i, l := range list {
		testutil.True(t, l.NSID == uint32(i+1) && l.IOs == 1 &&
			l.Stages[fabric.StageWait].Count() == 1, "entry %d: %+v", i, l)
	}
	testutil.Equal(t, len(list), entries, "entries")
}

// TestManyEntries: a reactor lists its entries in pieces, without the dropped ones.
func TestManyEntries(t *testing.T) {
	loop := mailbox{posts: make(chan func(), 100)}
	l, share := NewLatencies(loop), 0
	const namespaces = LatencyEntries + 3
	for i := range namespaces {
		ns := &Namespace{NSID: uint32(i + 1)}
		if l.Join("host", &share, ns).Add(&fabric.Request{}); i == 1 {
			l.Drop(ns)
		}
	}
	listed := 0
	end := make(chan error)
	go func() { end <- l.read(t.Context(), func(LatencyInfo) { listed++ }) }()
	var err error
	posts := 0
	for reads := true; reads || len(loop.posts) > 0; {
		select {
		case fn := <-loop.posts:
			fn()
			posts++
		case err = <-end:
			reads = false
		}
	}
	const pieces = namespaces/64 + 1 // and a message for each entry, and for the end
	if err != nil || listed != namespaces-1 || posts != pieces+listed+1 || l.reads != 0 {
		t.Errorf("%v, %d entries by %d messages, %d reads are left", err, listed, posts, l.reads)
	}
}

// TestDropNamespace: nothing is left of a namespace that is dropped, of hosts that are connected
// or were.
func TestDropNamespace(t *testing.T) {
	l, ns, share := NewLatencies(nil), &Namespace{}, 0
	l.Leave(l.Join("a", &share, ns))
	l.Join("b", &share, ns)
	l.others(ns)
	if l.Drop(ns); len(l.entries)+l.all.Len() != 0 || l.hosts+l.used+share != 0 || !l.left.Empty() {
		t.Errorf("%d entries, %d of hosts, %d used are left", len(l.entries), l.hosts, l.used)
	}
}

// loopNow is a loop that runs posts at once.
type loopNow struct{ fabric.Loop }

func (loopNow) Post(fn func()) { fn() }
func (loopNow) Clock() int64   { return 0 }

type idleQueue struct{ Queue }

func (idleQueue) Loop() fabric.Loop                  { return loopNow{} }
func (idleQueue) Describe() observed.TraceQueue      { return observed.TraceQueue{ID: 1} }
func (idleQueue) Open(func(*fabric.Request, string)) {}

// TestTracerForgets: a Tracer knows no queues that have ended.
func TestTracerForgets(t *testing.T) {
	r := &Recorder{Queue: idleQueue{}}
	r.Start()
	queues := []*Recorder{r}
	tr := NewTracer(observed.TraceQuery{Queue: -1}, func() []Reactor {
		return []Reactor{{loopNow{}, func(visit func(*Recorder), done func()) {
			for _, r := range queues {
				visit(r)
			}
			done()
		}}}
	})
	seen := 0
	read := func() {
		testutil.Must(t, tr.Read(t.Context(), func(observed.TraceQueue) error {
			seen++
			return nil
		}))
	}
	read()
	testutil.True(t, seen == 1 && len(tr.read) == 1, "%d seen, %d known", seen, len(tr.read))
	queues = nil
	read()
	testutil.Equal(t, len(tr.read), 0, "queues that have ended are known")
}

// TestRecordSize: the size of a ring is the size that transports count for it.
func TestRecordSize(t *testing.T) {
	n := reflect.TypeFor[[TraceDepth]record]().Size()
	testutil.True(t, n == fabric.HandlerMemory, "%d bytes, %d are counted", n, fabric.HandlerMemory)
}

// TestManyDumps: a peer has its share of them, and makes them no faster than allowed; they end.
func TestManyDumps(t *testing.T) {
	d, now, all := new(Dumps), time.Now(), &observed.TraceQuery{Queue: -1}
	keep := func(remote int) bool {
		ok := d.Allows(testAddr(remote).Addr(), now)
		if ok {
			d.Add(observed.TraceQueue{Remote: testAddr(remote), Time: now})
		}
		return ok
	}
	count := func(remote int) (n int) {
		for _, q := range d.List(all) {
			if q.Remote == testAddr(remote) {
				n++
			}
		}
		return n
	}
	for range maxDumpsOfPeer {
		testutil.True(t, keep(1), "the first ones are not kept")
	}
	testutil.True(t, !keep(1) && keep(2),
		"one address keeps more than its share, or another one keeps none")
	if now = now.Add(dumpEvery); !keep(1) || count(1) != maxDumpsOfPeer {
		t.Errorf("%d of one address", count(1))
	}
	for i := range 100 {
		keep(3 + i)
	}
	testutil.Equal(t, len(d.List(all)), maxDumps, "are kept")
	for i := range 2 * maxDumps { // of reactors that were all allowed to
		d.Add(observed.TraceQueue{Remote: testAddr(i % 6), Time: now})
	}
	if n, of1 := len(d.List(all)), count(1); n > maxDumps || of1 > maxDumpsOfPeer {
		t.Errorf("%d are kept, %d of one address", n, of1)
	}
	d.mu.Lock()
	d.expire(now.Add(dumpsFor))
	left := len(d.list)
	d.mu.Unlock()
	testutil.True(t, left == 0, "%d are left", left)
}

func testAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1)
}
