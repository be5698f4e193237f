package list

import "iter"

// What concerns many connections, controllers or namespaces at once is done in pieces: a reactor
// does a piece in a turn, and posts the rest to itself, so that whatever else it has to do comes
// between them.

const (
	// pieceSteps is how many steps a piece takes. The last of its elements may exceed it.
	pieceSteps = 64
	// StepsMost is the most steps of any turn of a reactor: what it does between two looks at
	// everything else. A step is a command, an I/O, a completion, or a look at an element of a
	// list: a microsecond at most. With the build tag invariants a turn with more panics.
	StepsMost = 1024
)

// Pieces calls next until there is nothing left, and then done. next does one thing and returns how
// many steps it took, 0 if there was nothing left to do. A turn has about pieceSteps of them; post
// runs the rest soon, on the same reactor. The first piece is done before Pieces returns.
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

// Place is the place of an element in a Set. The element has it as a field; the zero Place is in
// none.
type Place struct{ n int } // the index, and 1

// Listed reports whether the element is in a Set.
func (p *Place) Listed() bool { return p.n > 0 }

// Len is the number of elements.
func (s *Set[T]) Len() int { return len(s.all) }

// At returns an element, by an index below Len that holds until one is removed.
func (s *Set[T]) At(i int) *T { return s.all[i].v }

// All yields the elements. The loop does not change the Set.
func (s *Set[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, m := range s.all {
			if !yield(m.v) {
				return
			}
		}
	}
}

// Add adds v, whose place is in no Set.
func (s *Set[T]) Add(v *T, p *Place) {
	s.all = append(s.all, member[T]{v, p})
	p.n = len(s.all)
}

// Remove removes the element at a place. If that is in no Set it does nothing.
func (s *Set[T]) Remove(p *Place) {
	if p.n == 0 {
		return
	}
	last := len(s.all) - 1
	s.all[p.n-1] = s.all[last] // a Walk that has not come here has visited it, or will
	s.all[p.n-1].place.n = p.n
	s.all[last] = member[T]{}
	s.all, p.n = s.all[:last], 0
}

// Walk returns what Pieces needs to visit the elements that there are now, unless they are removed
// before their turn. When others are removed meanwhile, an element may be visited once more. visit
// returns how many steps it took; it may add and remove elements.
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
