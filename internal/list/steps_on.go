//go:build invariants

package list

import "fmt"

// invariants is set with the build tag of that name.
const invariants = true

// Steps counts the steps of a turn of a reactor, see StepsMost.
type Steps struct{ of *steps }

type steps struct{ n, most int }

// NewSteps makes the counter of a reactor.
func NewSteps() Steps { return Steps{new(steps)} }

// StepsOf returns the counter of a loop. A loop of a test may have none, which counts nothing.
func StepsOf(loop any) Steps {
	if l, ok := loop.(interface{ Steps() Steps }); ok {
		return l.Steps()
	}
	return Steps{}
}

// Begin begins a turn.
func (s Steps) Begin() {
	if s.of != nil {
		s.of.n = 0
	}
}

// Add counts n steps of the turn. Reactor only.
func (s Steps) Add(n int) {
	if s.of == nil {
		return
	}
	s.of.n += n
	s.of.most = max(s.of.most, s.of.n)
	if s.of.n > StepsMost {
		panic(fmt.Sprintf("a turn of a reactor takes %d steps, at most %d are allowed", s.of.n,
			StepsMost))
	}
}

// Most returns the largest number of steps in a turn since the last call of Most.
func (s Steps) Most() int {
	if s.of == nil {
		return 0
	}
	most := s.of.most
	s.of.most = 0
	return most
}
