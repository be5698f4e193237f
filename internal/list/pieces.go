package list

import "iter"

// Work on many connections, controllers or namespaces is done in pieces: a reactor does one piece
// in a turn and posts the rest to itself, so that its other work comes between them.

const (
	// pieceSteps is the number of steps in a piece. The last element may exceed it.
	pieceSteps = 64
	// StepsMost is the maximum number of steps in a turn of a reactor, that is, between two looks
	// at its other work. A step is a command, an I/O, a completion, or a look at an element of a
	// list: a microsecond at most. With the build tag invariants a longer turn panics.
	StepsMost = 1024
)

// Pieces calls next until there is nothing left, and then done. next does one thing and returns the
// number of steps it took, 0 if nothing was left. A turn has about pieceSteps of them; post runs
// the rest soon, on the same reactor. The first piece is done before Pieces returns.
func Pieces(post func(func()), s Steps, next func() int, done func()) {
	for left := pieceSteps; left > 0; {
		n := next()
		if n == 0 {
			done()
			return
		}
		s.Add(n)
		left -= n
	}
	post(func() { Pieces(post, s, next, done) })
}

// Set has elements that Walk visits in pieces. The zero Set is empty. One goroutine owns it.
type Set[T any] struct{ all []member[T] }

type member[T any] struct {
	v     *T
	place *Place
}

// Place is the position of an element in a Set or Heap, in a field of it. The zero Place is in
// none.
type Place uint64 // the index, and 1

// Listed reports whether the element is in a Set or Heap.
func (p *Place) Listed() bool { return *p > 0 }

// Len returns the number of elements.
func (s *Set[T]) Len() int { return len(s.all) }

// At returns an element by an index below Len. The index is valid until an element is removed.
func (s *Set[T]) At(i int) *T { return s.all[i].v }

// All yields the elements. The loop must not change the Set.
func (s *Set[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, m := range s.all {
			if !yield(m.v) {
				return
			}
		}
	}
}

// Add adds v. Its place p must be in no Set.
func (s *Set[T]) Add(v *T, p *Place) {
	s.all = append(s.all, member[T]{v, p})
	*p = Place(len(s.all))
}

// Remove removes the element at a place. It does nothing if the place is in no Set.
func (s *Set[T]) Remove(p *Place) {
	if *p == 0 {
		return
	}
	last := len(s.all) - 1
	s.all[*p-1] = s.all[last] // a Walk that has not reached this index has visited it, or will
	*s.all[*p-1].place = *p
	s.all[last] = member[T]{}
	s.all, *p = s.all[:last], 0
}

// Walk returns a function for Pieces that visits the current elements, unless they are removed
// before their turn. If others are removed meanwhile, an element may be visited once more. visit
// returns the number of steps it took; it may add and remove elements.
func (s *Set[T]) Walk(visit func(*T) int) (next func() int) {
	i := len(s.all)
	return func() int {
		if i = min(i, len(s.all)); i == 0 {
			return 0
		}
		i--
		return max(visit(s.all[i].v), 1)
	}
}
