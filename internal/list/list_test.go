package list

import (
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
	if !slices.Equal(ids(&l), []int{1, 3}) || !slices.Equal(ids(&other), []int{0, 2, 4}) {
		t.Fatalf("%v and %v", ids(&l), ids(&other))
	}
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

// turns runs posted functions one by one and returns their number.
type turns struct{ posted []func() }

func (t *turns) post(fn func()) { t.posted = append(t.posted, fn) }

func (t *turns) run() (n int) {
	for ; len(t.posted) > 0; n++ {
		fn := t.posted[0]
		t.posted = t.posted[1:]
		fn()
	}
	return n
}

type placed struct {
	place Place
	id    int
}

// TestWalk: a walk in pieces takes turns, and visits all elements however they change.
func TestWalk(t *testing.T) {
	const n = 10 * pieceSteps
	var s Set[placed]
	all := make([]placed, n)
	for i := range all {
		all[i].id = i
		s.Add(&all[i], &all[i].place)
	}
	var ts turns
	var visited []int
	late := placed{id: n}
	done := false
	inTurn := 0
	next := s.Walk(func(p *placed) int {
		inTurn++
		visited = append(visited, p.id)
		switch p.id {
		case n - 1:
			s.Add(&late, &late.place)
			s.Remove(&p.place)
		case n / 2:
			s.Remove(&all[3].place) // before its turn
			s.Remove(&all[n-5].place)
		}
		return 1
	})
	counted := func(fn func()) {
		ts.post(func() {
			testutil.True(t, inTurn <= pieceSteps, "%d elements in a turn", inTurn)
			inTurn = 0
			fn()
		})
	}
	Pieces(counted, Steps{}, next, func() { done = true })
	if turns := ts.run(); !done || turns < n/pieceSteps {
		t.Errorf("%d turns, done: %t", turns, done)
	}
	slices.Sort(visited)
	visited = slices.Compact(visited)
	for i := range n {
		_, found := slices.BinarySearch(visited, i)
		testutil.True(t, found != (i == 3), "element %d was visited: %t", i, found)
	}
	testutil.Equal(t, s.Len(), n-2, "elements are left")
	for i := range s.Len() {
		s.Remove(&s.At(0).place)
		testutil.MustEqual(t, s.Len(), n-3-i, "elements are left")
	}
	s.Remove(&late.place) // again
}

// TestPiecesCost: elements that take many steps make shorter pieces.
func TestPiecesCost(t *testing.T) {
	var ts turns
	left, inTurn, most := 20, 0, 0
	Pieces(func(fn func()) { most, inTurn = max(most, inTurn), 0; ts.post(fn) }, Steps{},
		func() int {
			if left == 0 {
				return 0
			}
			left--
			inTurn++
			return pieceSteps / 4
		}, func() {})
	n := ts.run()
	testutil.True(t, n == 5 && most == 4, "%d turns, of %d elements at most", n, most)
}

// TestTurns: owners take turns, and an owner without elements leaves nothing.
func TestTurns(t *testing.T) {
	var q Turns[byte, element]
	all := elements(6)
	for i := range all {
		q.Push("aaabbc"[i], &all[i], &all[i].node)
	}
	q.Remove('a', &all[1].node)
	q.Remove('c', &all[5].node)
	var got []int
	for e := q.Pop(); e != nil; e = q.Pop() {
		if len(got) == 0 {
			q.Push('d', &all[5], &all[5].node) // after owners that wait already
		}
		got = append(got, e.id)
	}
	testutil.EqualSlices(t, got, []int{0, 3, 2, 5, 4}, "order")
	testutil.True(t, q.Empty() && q.next.Empty(), "owners are left")
}
