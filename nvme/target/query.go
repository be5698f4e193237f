package target

import (
	"sync"
	"time"
)

// query asks for something that may block without end, such as a system call on a network file
// system or a command to a drive. Hosts may want to know as often as they like: the question is
// asked by one goroutine at a time, for all that wait. Any goroutine may use it.
type query[T any] struct {
	ask func() (*T, error)
	age time.Duration // how old the last answer may be before the question is asked again

	mu      sync.Mutex
	done    chan struct{} // closed when the running call has returned; nil if none runs
	asked   time.Time     // when the last call began
	last    *T            // the last answer, nil if there is none yet; it is immutable
	arrived time.Time     // when it was given
	err     error         // of the last call that has returned
}

// answerWait is how long a call may take before the last answer is used instead.
const answerWait = 5 * time.Second

// get returns the last answer, nil if there is none, and the error of the last call. It asks first
// if the answer is older than age, and waits until answerWait after the call began.
func (q *query[T]) get() (*T, error) {
	q.mu.Lock()
	if q.done == nil && time.Since(q.asked) >= q.age {
		q.done, q.asked = make(chan struct{}), time.Now()
		go q.run()
	}
	done, left := q.done, answerWait-time.Since(q.asked)
	q.mu.Unlock()
	if done != nil && left > 0 {
		select {
		case <-done:
		case <-time.After(left):
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.last, q.err
}

func (q *query[T]) run() {
	answer, err := q.ask()
	q.mu.Lock()
	if q.err = err; err == nil {
		q.last, q.arrived = answer, time.Now()
	}
	close(q.done)
	q.done = nil
	q.mu.Unlock()
}

// peek returns the last answer, when it was given, and the error of the last call, without asking.
// It does not block.
func (q *query[T]) peek() (*T, time.Time, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.last, q.arrived, q.err
}
