//go:build !invariants

package list

// invariants is set with the build tag of that name.
const invariants = false

// Steps counts the steps of a reactor's turn, see StepsMost; without the tag invariants nothing.
type Steps struct{}

// NewSteps makes the counter of a reactor.
func NewSteps() Steps { return Steps{} }

// StepsOf returns the counter of a loop.
func StepsOf(any) Steps { return Steps{} }

// Begin begins a turn.
func (Steps) Begin() {}

// Add counts n steps of the turn. Reactor only.
func (Steps) Add(int) {}

// Most returns the largest number of steps in a turn since the last call of Most.
func (Steps) Most() int { return 0 }
