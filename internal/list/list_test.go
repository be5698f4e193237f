package list

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

type element struct {
	node Node[element]
	id   int
}

func ids(l *List[element]) (out []int) {
	for e := range l.All() {
		out = append(out, e.id)
	}
	return out
}

func elements(n int) []element {
	e := make([]element, n)
	for i := range e {
		e[i].id = i
	}
	return e
}

func TestList(t *testing.T) {
	var l List[element]
	testutil.MustTrue(t, l.Empty() && l.First() == nil && l.Pop() == nil && ids(&l) == nil,
		"an empty list has something")
	e := elements(6)
	for round := range 3 {
		for i := range 5 {
			l.Push(&e[i], &e[i].node)
		}
		l.PushFirst(&e[5], &e[5].node)
		testutil.EqualSlices(t, ids(&l), []int{5, 0, 1, 2, 3, 4}, "round %d", round)
		l.Remove(&e[2].node) // in the middle
		l.Remove(&e[4].node) // the newest
		l.Remove(&e[5].node) // the oldest
		testutil.MustTrue(t, !e[2].node.Listed() && e[3].node.Listed() && l.First() == &e[0],
			"round %d: an element is wrong about being listed", round)
		testutil.MustTrue(t, l.Pop() == &e[0] && l.Pop() == &e[1] && l.Pop() == &e[3] &&
			l.Pop() == nil && l.Empty(), "round %d: the order is wrong", round)
	}
}

// TestRemoveWhileRanging: the current element of All may be removed, and may be pushed again.
func TestRemoveWhileRanging(t *testing.T) {
	var l, other List[element]
	e := elements(5)
	for i := range e {
		l.Push(&e[i], &e[i].node)
	}
	for v := range l.All() {
		if v.id%2 == 0 {
			l.Remove(&v.node)
			other.Push(v, &v.node)
		}
	}
	testutil.MustTrue(t, slices.Equal(ids(&l), []int{1, 3}) &&
		slices.Equal(ids(&other), []int{0, 2, 4}), "%v and %v", ids(&l), ids(&other))
}

// TestInbox: elements of one goroutine arrive in order, and none is lost.
func TestInbox(t *testing.T) {
	const writers, each = 4, 2000
	var b Inbox[element]
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			e := elements(each)
			for i := range e {
				e[i].id += w * each
				b.Push(&e[i], &e[i].node)
			}
		})
	}
	var l List[element]
	next, got := [writers]int{}, 0
	take := func() {
		b.Take(&l)
		for e := l.Pop(); e != nil; e = l.Pop() {
			w := e.id / each
			testutil.MustEqual(t, e.id%each, next[w], "what came of writer %d", w)
			next[w]++
			got++
		}
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		take()
	}
	take()
	testutil.MustTrue(t, got == writers*each && b.Empty(), "%d of %d elements came", got,
		writers*each)
}

// TestFill: elements that fit are moved, oldest first, and the rest stays.
func TestFill(t *testing.T) {
	var l List[element]
	testutil.MustEqual(t, l.Fill(make([]*element, 4)), 0, "an empty list has something")
	e := elements(10)
	for i := range e {
		l.Push(&e[i], &e[i].node)
	}
	dst := make([]*element, 6)
	for _, want := range [][]int{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9}, nil} {
		var got []int
		for _, v := range dst[:l.Fill(dst)] {
			testutil.True(t, !v.node.Listed(), "%d is still listed", v.id)
			got = append(got, v.id)
		}
		testutil.True(t, slices.Equal(got, want), "%v, want %v", got, want)
	}
	testutil.True(t, l.Empty() && l.Fill(nil) == 0, "something is left")
}

func TestNoAllocation(t *testing.T) {
	var l List[element]
	var b Inbox[element]
	e := elements(8)
	if n := testing.AllocsPerRun(100, func() {
		for i := range e {
			b.Push(&e[i], &e[i].node)
		}
		b.Take(&l)
		for v := range l.All() {
			v.id++
		}
		for l.Pop() != nil {
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPushPop(b *testing.B) {
	var l List[element]
	e := elements(32)
	for b.Loop() {
		for i := range e {
			l.Push(&e[i], &e[i].node)
		}
		for range e {
			l.Pop()
		}
	}
}

// TestHeap compares a Heap with a plain list of times.
func TestHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h Heap[int64]
	var all [40]struct {
		at    int64 // -1: not in the heap
		place Place
	}
	for i := range all {
		all[i].at = -1
	}
	for range 20_000 {
		e := &all[r.IntN(len(all))]
		if e.at = int64(r.IntN(100)); e.at < 40 {
			e.at = -1
			h.Remove(&e.place)
		} else {
			h.Set(&e.at, &e.place, e.at)
		}
		n, least := 0, int64(100)
		for i := range all {
			if at := all[i].at; at >= 0 {
				n, least = n+1, min(least, at)
				testutil.MustEqual(t, h.At(&all[i].place), at, "time of an element")
			}
			testutil.MustEqual(t, all[i].place.Listed(), all[i].at >= 0, "element in the heap")
			testutil.MustEqual(t, h.Has(&all[i].at, &all[i].place), all[i].at >= 0, "Has")
		}
		testutil.MustEqual(t, h.Len(), n, "elements")
		if v, at := h.First(); v != nil {
			testutil.MustTrue(t, *v == least && at == least, "first %d, want %d", *v, least)
		}
	}
}
