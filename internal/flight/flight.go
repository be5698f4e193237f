// Package flight asks a slow question once for all callers that wait for the answer.
package flight

import (
	"context"
	"sync"
	"time"
)

// Question is a slow question, such as one to a driver that may not answer. One goroutine at a time
// asks it. Any goroutine may use a Question. It is not copied.
type Question[T any] struct {
	// Ask returns the answer. It is called on a goroutine of its own.
	Ask func() (T, error)
	// Fresh is the age up to which an answer is returned again.
	Fresh time.Duration

	mu      sync.Mutex
	running chan struct{} // closed when Ask returns; nil: it is not called
	ended   time.Time     // when it returned last
	answer  T
	err     error
}

// Answer returns the result of Ask, or the cause of the end of ctx while the question goes on.
func (q *Question[T]) Answer(ctx context.Context) (answer T, err error) {
	if running := q.begin(); running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			return answer, context.Cause(ctx)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.answer, q.err
}

// begin asks if the last answer is not fresh. It returns a channel that is closed when the question
// in progress is answered, nil if there is none.
func (q *Question[T]) begin() (running chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running != nil || !q.ended.IsZero() && time.Since(q.ended) < q.Fresh {
		return q.running
	}
	q.running = make(chan struct{})
	go func() {
		answer, err := q.Ask()
		q.mu.Lock()
		defer q.mu.Unlock()
		close(q.running)
		q.answer, q.err, q.ended, q.running = answer, err, time.Now(), nil
	}()
	return q.running
}
