package target

import (
	"sync"
	"time"
)

// query asks for something that may block without end, such as a system call on a network file
// system or a command to a drive. Hosts may want to know as often as they like: one goroutine at a
// time makes calls, for all that wait. Any goroutine may use it.
type query[T any] struct {
	ask func() (*T, error)
	age time.Duration // how old an answer may be: that of a call that began longer ago is no good

	mu      sync.Mutex
	begun   uint64             // calls that have begun,
	ended   uint64             // and that have returned: as many, or one less
	waiters map[*waiter]uint64 // and the number of the call that each waits for
	asked   time.Time          // when the last call began
	last    *T                 // the last answer, nil if there is none yet; it is immutable
	arrived time.Time          // when it was given
	err     error              // of the last call that has returned
}

// waiter waits for the answers of queries.
type waiter struct {
	// answered is called once for each answer, by any goroutine. It does not block.
	answered func()
}

// asker is a query, whatever the type of its answers.
type asker interface {
	request(w *waiter) (wait bool)
	leave(w *waiter)
}

// answerWait is how long an answer may take before the last one is used instead.
const answerWait = 5 * time.Second

// request makes sure that there will be an answer that is not older than age now, and reports
// whether w has to wait for it. It has not if there is such an answer, or if the running call has
// taken answerWait already: then the last answer has to do. It does not block.
func (q *query[T]) request(w *waiter) (wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	running, since := q.ended < q.begun, time.Since(q.asked)
	if !running && since < q.age || running && since >= answerWait {
		return false
	}
	call := q.begun
	if since >= q.age {
		call++ // a running call began too early
	}
	if !running {
		q.begin()
		go q.run()
	}
	if q.waiters == nil {
		q.waiters = make(map[*waiter]uint64)
	}
	q.waiters[w] = call
	return true
}

// leave ends the wait of w, if it waits.
func (q *query[T]) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiters, w)
}

// begin is called with the lock held.
func (q *query[T]) begin() {
	q.begun++
	q.asked = time.Now()
}

// run makes calls until nobody waits.
func (q *query[T]) run() {
	for more := true; more; {
		answer, err := q.ask()
		q.mu.Lock()
		if q.err = err; err == nil {
			q.last, q.arrived = answer, time.Now()
		}
		q.ended++
		for w, call := range q.waiters {
			if call <= q.ended {
				delete(q.waiters, w)
				w.answered()
			}
		}
		if more = len(q.waiters) > 0; more {
			q.begin()
		}
		q.mu.Unlock()
	}
}

// peek returns the last answer, when it was given, and the error of the last call, without asking.
// It does not block.
func (q *query[T]) peek() (*T, time.Time, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.last, q.arrived, q.err
}

// awaitAll asks all queries at the same time and waits for their answers, for answerWait at most.
func awaitAll(queries []asker) {
	done := make(chan struct{}, len(queries))
	w := &waiter{answered: func() { done <- struct{}{} }}
	left := 0
	for _, q := range queries {
		if q.request(w) {
			left++
		}
	}
	timeout := time.After(answerWait)
	for ; left > 0; left-- {
		select {
		case <-done:
		case <-timeout:
			for _, q := range queries {
				q.leave(w)
			}
			return
		}
	}
}
