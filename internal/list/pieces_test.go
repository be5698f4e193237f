package list

import (
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
