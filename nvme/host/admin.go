package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// admin owns an admin queue: one goroutine submits all commands and keep alives.
type admin struct {
	q      *Queue
	wakeFD int
	ended  chan struct{} // closed when the goroutine has ended
	err    error         // why it ended; valid once ended is closed

	mu       sync.Mutex
	pending  []*adminCall // not submitted yet
	closed   bool
	interval time.Duration // between keep alives, 0 for none

	// Owned by the goroutine.
	calls        map[uint64]*adminCall // by token
	nextToken    uint64
	nextAlive    time.Time
	aliveStarted time.Duration // the interval that nextAlive was computed with
}

type adminCall struct {
	op   Op
	cqe  nvme.CQE
	err  error
	done chan struct{} // closed at completion; nil if no caller waits
}

func startAdmin(q *Queue) (*admin, error) {
	fd, err := newEventFD()
	if err != nil {
		return nil, err
	}
	a := &admin{
		q: q, wakeFD: fd, ended: make(chan struct{}), calls: make(map[uint64]*adminCall),
	}
	go a.run()
	return a, nil
}

func (a *admin) enqueue(c *adminCall) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return fmt.Errorf("admin queue: %w", ErrClosed)
	}
	a.pending = append(a.pending, c)
	a.wake()
	return nil
}

// wake requires mu, under which the descriptor is closed.
func (a *admin) wake() { wakeEventFD(a.wakeFD) }

func (a *admin) keepAlive(interval time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.interval = interval
		a.wake()
	}
}

// stop ends the goroutine and waits for it.
func (a *admin) stop() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		a.wake()
	}
	a.mu.Unlock()
	<-a.ended
}

func (a *admin) run() {
	var done [32]Completion
	err := a.step(done[:])
	for err == nil {
		err = a.step(done[:])
	}
	a.mu.Lock()
	a.closed = true
	failed := append(slices.Collect(maps.Values(a.calls)), a.pending...)
	_ = unix.Close(a.wakeFD)
	a.mu.Unlock()
	_ = a.q.Close()
	a.err = err
	close(a.ended)
	for _, c := range failed {
		if c.done != nil {
			c.err = err
			close(c.done)
		}
	}
}

// step submits and completes commands, or waits if there are none.
func (a *admin) step(done []Completion) error {
	if err := a.submit(); err != nil {
		return err
	}
	n, err := a.q.Poll(done)
	if err != nil {
		return err
	}
	for i := range done[:n] {
		a.finish(&done[i])
	}
	if n > 0 {
		return nil
	}
	d := time.Minute
	if a.aliveStarted > 0 {
		d = time.Until(a.nextAlive)
	}
	if d <= 0 {
		return nil
	}
	if err := a.q.link.wait(a.q, a.wakeFD, d); err != nil {
		return err
	}
	drainEventFD(a.wakeFD)
	return nil
}

// submit submits pending calls and the keep alive that is due.
func (a *admin) submit() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return ErrClosed
	}
	calls := a.pending[:min(len(a.pending), a.q.Free())]
	a.pending = a.pending[len(calls):]
	if a.interval != a.aliveStarted {
		a.aliveStarted = a.interval
		a.nextAlive = time.Now().Add(a.interval)
	}
	a.mu.Unlock()
	for _, c := range calls {
		if err := a.submitCall(c); err != nil {
			return err
		}
	}
	if a.aliveStarted > 0 && !time.Now().Before(a.nextAlive) && a.q.Free() > 0 {
		a.nextAlive = time.Now().Add(a.aliveStarted)
		c := new(adminCall)
		c.op.SQE.SetOpcode(nvme.AdminKeepAlive)
		return a.submitCall(c)
	}
	return nil
}

func (a *admin) submitCall(c *adminCall) error {
	a.nextToken++
	c.op.Token = a.nextToken
	a.calls[c.op.Token] = c
	if _, err := a.q.Submit(&c.op); err != nil {
		if a.q.Err() != nil {
			return err
		}
		delete(a.calls, c.op.Token) // only this command cannot be built
		c.err = err
		if c.done != nil {
			close(c.done)
		}
	}
	return nil
}

func (a *admin) finish(done *Completion) {
	c := a.calls[done.Token]
	delete(a.calls, done.Token)
	c.cqe = done.CQE
	if c.done != nil {
		close(c.done)
	}
}

// Admin sends an admin or Fabrics command and waits for its completion, with any status. op.Data is
// copied in both directions, so it belongs to the caller again when Admin returns.
func (c *Controller) Admin(ctx context.Context, op *Op) (nvme.CQE, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	return c.AdminAsync(ctx, op)()
}

// AdminAsync is Admin for commands that may take long: it returns at once. The returned function
// waits for the completion.
func (c *Controller) AdminAsync(ctx context.Context, op *Op) func() (nvme.CQE, error) {
	call := &adminCall{op: *op, done: make(chan struct{})}
	call.op.Data = bytes.Clone(op.Data)
	err := c.admin.enqueue(call)
	return func() (nvme.CQE, error) {
		if err != nil {
			return nvme.CQE{}, errors.Join(err, c.Err())
		}
		select {
		case <-call.done:
			if call.err == nil && directionOf(&op.SQE) == toHost {
				copy(op.Data, call.op.Data)
			}
			return call.cqe, call.err
		case <-ctx.Done():
			return nvme.CQE{}, fmt.Errorf("admin opcode %#x: no answer: %w", op.SQE.Opcode(),
				ctx.Err())
		}
	}
}
