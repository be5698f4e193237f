package disk

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestSpan(t *testing.T) {
	var r rangeLock
	r.init(512)
	const g = minUnit
	for _, tc := range []struct {
		off, n int64
		want   span
	}{
		{0, 0, span{}},
		{0, 1, span{a: 0, b: 1}},
		{g - 1, 1, span{a: 0, b: 1}},
		{g - 1, 2, span{a: 0, b: 2}},
		{g, 512, span{a: 1, b: 2}},
		{5 * g, 3 * g, span{a: 5, b: 8}},
		{(nUnits - 1) * g, g, span{a: nUnits - 1, b: nUnits}},
		{(nUnits - 1) * g, 2 * g, span{a: 0, b: 1, c: nUnits - 1, d: nUnits}},
		{7 * nUnits * g, g, span{a: 0, b: 1}},
		{3 * g, (nUnits - 1) * g, span{a: 0, b: 2, c: 3, d: nUnits}},
		{3 * g, nUnits * g, span{b: nUnits}},
		{512, 1 << 40, span{b: nUnits}},
	} {
		testutil.Equal(t, r.span(tc.off, tc.n), tc.want, "span(%d, %d)", tc.off, tc.n)
	}
	r.init(64 << 10)
	testutil.Equal(t, r.span(64<<10, 64<<10), (span{a: 1, b: 2}), "with blocks of 64 KiB")
}

// actor locks and unlocks ranges as a channel does.
type actor struct {
	c     channel
	woken chan struct{}
}

func newActor() *actor {
	a := &actor{woken: make(chan struct{}, 1)}
	a.c.wake = func() {
		select {
		case a.woken <- struct{}{}:
		default:
		}
	}
	return a
}

// take returns the next delivered op, nil if there is none.
func (a *actor) take() *op {
	a.c.inbox.Take(&a.c.arrived)
	return a.c.arrived.Pop()
}

// granted returns the next op that has all of its units, nil if there is none for now.
func (a *actor) granted(r *rangeLock) *op {
	for o := a.take(); o != nil; o = a.take() {
		if r.next(o) {
			return o
		}
	}
	return nil
}

// next continues a delivered op.
func (r *rangeLock) next(o *op) bool {
	if o.event == passed {
		return r.passed(o)
	}
	return r.granted(o)
}

func (a *actor) op(kind backend.Op, off, n int64) *op {
	return &op{c: &a.c, io: &backend.IO{Op: kind, Off: off, Len: n}, write: kind != backend.OpRead}
}

// places checks exclusion: it counts the readers of each place, or has -1 for a writer.
type places [16]atomic.Int32

const (
	nPlaces  = len(places{})
	oneWrite = -1000
)

// random returns an op on some of the places, and their range. A few ops cover all units.
func (a *actor) random(rnd *rand.Rand) (o *op, from, to int) {
	kind := backend.OpRead
	if rnd.IntN(2) == 0 {
		kind = backend.OpWrite
	}
	from = rnd.IntN(nPlaces)
	to = from + 1 + rnd.IntN(nPlaces-from)
	off, n := int64(from)*minUnit, int64(to-from)*minUnit
	switch rnd.IntN(50) {
	case 0: // another part of the disk in the same units
		off += nUnits * minUnit
	case 1:
		return a.op(kind, 0, nUnits*minUnit), 0, nPlaces
	case 2: // around the end of the table
		return a.op(kind, (nUnits-3)*minUnit, int64(3+to)*minUnit), 0, to
	}
	return a.op(kind, off, n), from, to
}

// enter uses the places, exclusively for a write.
func (p *places) enter(t *testing.T, o *op, from, to int) {
	one := int32(1)
	if o.write {
		one = oneWrite
	}
	for i := from; i < to; i++ {
		n := p[i].Add(one)
		testutil.True(t, (!o.write || n == one) && n < 0 == o.write, "place %d is used by %d", i, n)
	}
}

func (p *places) leave(o *op, from, to int) {
	for i := from; i < to; i++ {
		if o.write {
			p[i].Add(-oneWrite)
		} else {
			p[i].Add(-1)
		}
	}
}

// mustBeFree checks that nothing is locked, and that nothing waits.
func (r *rangeLock) mustBeFree(t *testing.T) {
	t.Helper()
	testutil.MustTrue(t, r.gate.Load() == nil, "an op is the gate")
	for i := range r.units {
		testutil.MustEqual(t, r.units[i].Load(), 0, "unit %d", i)
		testutil.MustTrue(t, r.queues == nil || r.queues[i].Empty(), "unit %d: an op still waits",
			i)
	}
}

// TestRangeLockExcludes: a writer excludes all others from its range, readers share, and everything
// is granted in the end, with many ops of many channels on few units.
func TestRangeLockExcludes(t *testing.T) {
	var r rangeLock
	r.init(minUnit)
	var used places
	const channels, each, depth = 8, 4000, 24
	type use struct{ from, to int }
	var wg sync.WaitGroup
	for i := range channels {
		wg.Go(func() {
			a := newActor()
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			uses := map[*op]use{}
			var has []*op
			for begun, done := 0, 0; done < each; {
				switch {
				case begun < each && len(uses) < depth && rnd.IntN(4) > 0:
					o, from, to := a.random(rnd)
					begun++
					uses[o] = use{from, to}
					if r.lock(o) {
						used.enter(t, o, from, to)
						has = append(has, o)
					}
				case len(has) > 0 && rnd.IntN(2) == 0:
					k := rnd.IntN(len(has))
					o := has[k]
					has = slices.Delete(has, k, k+1)
					used.leave(o, uses[o].from, uses[o].to)
					r.unlock(o)
					delete(uses, o)
					done++
				default:
					o := a.granted(&r)
					if o != nil {
						used.enter(t, o, uses[o].from, uses[o].to)
						has = append(has, o)
						continue
					}
					if len(has) > 0 || begun < each && len(uses) < depth {
						continue
					}
					select {
					case <-a.woken:
					case <-time.After(testutil.Patience):
						t.Errorf("channel %d: %d ops are not granted", i, len(uses))
						return
					}
				}
			}
		})
	}
	wg.Wait()
	r.mustBeFree(t)
}

// TestRangeLockIsFair: a later op does not overtake one that waits for the same unit, unless it has
// other blocks.
func TestRangeLockIsFair(t *testing.T) {
	var r rangeLock
	r.init(minUnit)
	a := newActor()
	r1, w := a.op(backend.OpRead, 0, 2*minUnit), a.op(backend.OpWrite, minUnit, minUnit)
	r2, elsewhere := a.op(backend.OpRead, minUnit, 2*minUnit), a.op(backend.OpRead, 0, minUnit)
	testutil.MustTrue(t, r.lock(r1) && !r.lock(w) && !r.lock(r2),
		"a reader passes a writer that waits, or a writer a reader")
	testutil.MustTrue(t, a.granted(&r) == nil, "granted too early")
	testutil.MustTrue(t, r.lock(elsewhere), "a reader of another block has to wait")
	r.unlock(r1)
	testutil.MustTrue(t, a.granted(&r) == w && a.granted(&r) == nil, "the writer is not the next")
	r.unlock(w)
	testutil.MustEqual(t, a.granted(&r), r2, "the reader does not follow")
	r.unlock(r2)
	r.unlock(elsewhere)
	r.mustBeFree(t)
}

// TestRangeLockIsNotOvertaken: a waiting wide op gets its units after the ops that came before it,
// although others keep coming to each of them.
func TestRangeLockIsNotOvertaken(t *testing.T) {
	const small = 2 * wide
	for _, tc := range []struct {
		name    string
		waiting int // wide ops that wait before it
		most    int // ops that may pass it
	}{
		{"gate", 0, 2 * small}, {"follower", 1, 4 * small},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r rangeLock
			r.init(minUnit)
			a := newActor()
			var has list.List[op]
			begin := func(o *op) {
				if r.lock(o) {
					has.Push(o, &o.node)
				}
			}
			for i := range 2 * small { // on each unit one op that has it, and one that waits
				begin(a.op(backend.OpWrite, int64(i%small)*minUnit, minUnit))
			}
			var all *op
			for range tc.waiting + 1 {
				all = a.op(backend.OpWrite, 0, small*minUnit)
				begin(all)
			}
			testutil.True(t, r.lock(a.op(backend.OpWrite, small*minUnit, minUnit)),
				"a write of other blocks has to wait")
			for n := 0; ; n++ {
				o := has.Pop()
				testutil.MustTrue(t, o != nil, "nothing goes on")
				if o == all {
					return
				}
				testutil.MustTrue(t, n <= tc.most, "%d ops have passed one that waits", n)
				r.unlock(o)
				// The host sends the next one at once.
				begin(a.op(backend.OpWrite, o.io.Off, o.io.Len))
				for o := a.granted(&r); o != nil; o = a.granted(&r) {
					has.Push(o, &o.node)
				}
			}
		})
	}
}

// TestReadersFollowTogether: readers that wait for a writer get the unit at the same time, after
// a few turns of their channel.
func TestReadersFollowTogether(t *testing.T) {
	var r rangeLock
	r.init(minUnit)
	a := newActor()
	w := a.op(backend.OpWrite, 0, minUnit)
	r.lock(w)
	readers := make([]*op, 1000)
	for i := range readers {
		readers[i] = a.op(backend.OpRead, 0, minUnit)
		r.lock(readers[i])
	}
	last := a.op(backend.OpWrite, 0, minUnit)
	r.lock(last)
	r.unlock(w)
	have, turns := 0, 0
	for have < len(readers) {
		a.c.inbox.Take(&a.c.arrived)
		testutil.MustTrue(t, !a.c.arrived.Empty(),
			"%d of %d readers have the unit, and nothing goes on", have, len(readers))
		for o := a.c.arrived.Pop(); o != nil; o = a.c.arrived.Pop() {
			if r.granted(o) {
				have++
			}
		}
		turns++
	}
	testutil.True(t, turns <= 10, "%d readers took %d turns", len(readers), turns)
	for i, o := range readers {
		testutil.MustTrue(t, a.granted(&r) == nil, "the writer is granted with %d readers left",
			len(readers)-i)
		r.unlock(o)
	}
	testutil.MustEqual(t, a.granted(&r), last, "the writer does not follow")
	r.unlock(last)
	r.mustBeFree(t)
}

// TestRangeLockSteps: the cost of a call depends neither on the number of waiting ops nor on their
// kind.
func TestRangeLockSteps(t *testing.T) {
	for _, kind := range []backend.Op{backend.OpRead, backend.OpWrite, backend.OpDiscard} {
		for _, units := range []int64{1, wide - 1, wide} {
			var first costs
			for _, n := range []int{10, 1000, 16000} {
				got := measure(t, kind, units*minUnit, n)
				if n == 10 {
					first = got
					t.Logf("%v of %d units: at most %+v steps", kind, units, got)
				}
				least := costs{1, int(units) - 1, nUnits + grantSteps}
				testutil.True(t, got.lock >= least.lock && got.next >= least.next &&
					got.unlock >= least.unlock, "%v of %d units: %+v steps, want at least %+v",
					kind, units, got, least)
				testutil.True(t, got == first,
					"%v of %d units: %+v steps with %d waiting, %+v with 10", kind, units, got, n,
					first)
			}
		}
	}
}

// costs are the maximum steps of one call.
type costs struct{ lock, next, unlock int }

// measure makes n ops wait for a write of all units, and then lets all of them take their turn.
func measure(t *testing.T, kind backend.Op, size int64, n int) (most costs) {
	var r rangeLock
	r.init(minUnit)
	a := newActor()
	steps := func(most *int, call func() bool) bool {
		a.c.steps = 0
		all := call()
		*most = max(*most, -a.c.steps)
		return all
	}
	unlock := func(o *op) { steps(&most.unlock, func() bool { r.unlock(o); return true }) }
	first := a.op(backend.OpWrite, 0, nUnits*minUnit)
	r.lock(first)
	for range n {
		o := a.op(kind, 0, size)
		steps(&most.lock, func() bool { return r.lock(o) })
	}
	unlock(first)
	for range n {
		all := false
		for !all {
			o := a.take()
			testutil.MustTrue(t, o != nil, "nothing is granted")
			if all = steps(&most.next, func() bool { return r.next(o) }); all {
				unlock(o)
			}
		}
	}
	r.mustBeFree(t)
	return most
}

func BenchmarkRangeLock4K(b *testing.B) { benchmarkRangeLock(b, 4096) }
func BenchmarkRangeLock1M(b *testing.B) { benchmarkRangeLock(b, 1<<20) }

func benchmarkRangeLock(b *testing.B, n int64) {
	var r rangeLock
	r.init(512)
	o := newActor().op(backend.OpWrite, 0, n)
	b.ReportAllocs()
	for b.Loop() {
		r.lock(o)
		r.unlock(o)
	}
}

// BenchmarkRangeLockWaiting is the turn of one write of all units while many wait.
func BenchmarkRangeLockWaiting(b *testing.B) {
	for _, n := range []int{10, 1000, 16000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var r rangeLock
			r.init(512)
			a := newActor()
			o := a.op(backend.OpWrite, 0, nUnits*minUnit)
			r.lock(o)
			for range n {
				r.lock(a.op(backend.OpWrite, 0, nUnits*minUnit))
			}
			b.ReportAllocs()
			for b.Loop() {
				r.unlock(o)
				next := a.granted(&r)
				r.lock(o)
				o = next
			}
		})
	}
}

// BenchmarkRangeLockUnlockAll is the unlock of all units with ops waiting for each of them.
func BenchmarkRangeLockUnlockAll(b *testing.B) {
	for _, n := range []int{0, 1, 2} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var r rangeLock
			r.init(512)
			a := newActor()
			all := a.op(backend.OpWrite, 0, nUnits*minUnit)
			var ops []*op
			for i := range n * nUnits {
				ops = append(ops, a.op(backend.OpRead, int64(i%nUnits)*minUnit, minUnit))
			}
			for b.Loop() {
				b.StopTimer()
				r.lock(all)
				for _, o := range ops {
					r.lock(o)
				}
				b.StartTimer()
				r.unlock(all)
				b.StopTimer()
				for o := a.granted(&r); o != nil; o = a.granted(&r) {
					r.unlock(o)
				}
				b.StartTimer()
			}
		})
	}
}
