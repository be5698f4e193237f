package admin

import (
	"sync"
	"time"
)

// Query asks a question that may block without end, such as a system call on a network file system
// or a command to a drive. Hosts may ask as often as they like: one goroutine at a time makes
// calls, for all that wait. Any goroutine may use it.
type Query[T any] struct {
	Ask func() (*T, error)
	// Age is the largest age of an answer. The answer of a call that began earlier is not used.
	Age time.Duration

	mu      sync.Mutex
	begun   uint64             // calls that have begun
	ended   uint64             // calls that have returned: as many, or one less
	waiters map[*Waiter]uint64 // by the number of the call that each waits for
	asked   time.Time          // when the last call began
	last    *T                 // the last answer, nil if there is none yet; it is immutable
	arrived time.Time          // when it was given
	err     error              // of the last call that has returned
}

// Waiter waits for the answers of queries.
type Waiter struct {
	// Answered is called once for each answer, by any goroutine. It does not block.
	Answered func()
}

// Asker is a Query with answers of any type.
type Asker interface {
	Request(w *Waiter) (wait bool)
	Leave(w *Waiter)
}

// AnswerWait is how long an answer may take before the last one is used instead.
const AnswerWait = 5 * time.Second

// Request makes sure that there will be an answer that is not older than Age now, and reports
// whether w has to wait for it. It need not if there is such an answer, or if the running call has
// taken AnswerWait already: then the last answer has to do. It does not block.
func (q *Query[T]) Request(w *Waiter) (wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	running, since := q.ended < q.begun, time.Since(q.asked)
	if !running && since < q.Age || running && since >= AnswerWait {
		return false
	}
	call := q.begun
	if since >= q.Age {
		call++ // a running call began too early
	}
	if !running {
		q.begin()
		go q.run()
	}
	if q.waiters == nil {
		q.waiters = make(map[*Waiter]uint64)
	}
	q.waiters[w] = call
	return true
}

// Leave ends the wait of w, if it waits.
func (q *Query[T]) Leave(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiters, w)
}

// Waiters returns the number of waiters.
func (q *Query[T]) Waiters() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiters)
}

// begin is called with the lock held.
func (q *Query[T]) begin() {
	q.begun++
	q.asked = time.Now()
}

// run makes calls until there are no waiters.
func (q *Query[T]) run() {
	for more := true; more; {
		answer, err := q.Ask()
		q.mu.Lock()
		if q.err = err; err == nil {
			q.last, q.arrived = answer, time.Now()
		}
		q.ended++
		for w, call := range q.waiters {
			if call <= q.ended {
				delete(q.waiters, w)
				w.Answered()
			}
		}
		if more = len(q.waiters) > 0; more {
			q.begin()
		}
		q.mu.Unlock()
	}
}

// Peek returns the last answer, its time, and the last error, without asking or blocking.
func (q *Query[T]) Peek() (*T, time.Time, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.last, q.arrived, q.err
}

// AwaitAll asks all queries at the same time and waits for their answers, for AnswerWait at most.
func AwaitAll(queries []Asker) {
	done := make(chan struct{}, len(queries))
	w := &Waiter{Answered: func() { done <- struct{}{} }}
	left := 0
	for _, q := range queries {
		if q.Request(w) {
			left++
		}
	}
	timeout := time.After(AnswerWait)
	for ; left > 0; left-- {
		select {
		case <-done:
		case <-timeout:
			for _, q := range queries {
				q.Leave(w)
			}
			return
		}
	}
}

// Inherit takes over the last answer of a query that asks the same.
func (q *Query[T]) Inherit(o *Query[T]) { q.last, q.arrived, _ = o.Peek() }
