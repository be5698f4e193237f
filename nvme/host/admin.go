package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// admin owns an admin queue: one goroutine submits what others ask for, sends keep alives and
// collects asynchronous events.
type admin struct {
	q      *Queue
	wakeFD int
	dead   chan struct{} // closed when the goroutine has ended
	err    error         // why; valid once dead is closed
	events chan nvme.AsyncEvent

	mu       sync.Mutex
	asked    []*adminCall // not submitted yet
	closed   bool
	aliveGap time.Duration

	// Of the goroutine.
	calls     map[uint64]*adminCall
	nextToken uint64
	nextAlive time.Time
	seenGap   time.Duration
}

type adminCall struct {
	op   Op
	cqe  nvme.CQE
	err  error
	done chan struct{} // nil: nobody waits
	then func(nvme.CQE)
}

func startAdmin(q *Queue) (*admin, error) {
	fd, err := newEventFD()
	if err != nil {
		return nil, err
	}
	a := &admin{
		q: q, wakeFD: fd, dead: make(chan struct{}), calls: make(map[uint64]*adminCall),
		events: make(chan nvme.AsyncEvent, 64),
	}
	go a.run()
	return a, nil
}

// ask hands a call to the goroutine.
func (a *admin) ask(c *adminCall) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return fmt.Errorf("admin queue: %w", ErrClosed)
	}
	a.asked = append(a.asked, c)
	a.wake()
	return nil
}

// wake needs mu: the descriptor is closed under it.
func (a *admin) wake() { wakeEventFD(a.wakeFD) }

func (a *admin) keepAlive(gap time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.aliveGap = gap
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
	<-a.dead
}

func (a *admin) run() {
	var done [32]Completion
	err := a.step(done[:])
	for err == nil {
		err = a.step(done[:])
	}
	a.mu.Lock()
	a.closed = true
	for _, c := range a.asked {
		a.calls[a.nextToken] = c
		a.nextToken++
	}
	a.asked = nil
	_ = unix.Close(a.wakeFD)
	a.mu.Unlock()
	_ = a.q.Close()
	a.err = err
	close(a.events)
	close(a.dead)
	for _, c := range a.calls {
		if c.done != nil {
			c.err = err
			close(c.done)
		}
	}
}

// step does what there is to do, then waits for more.
func (a *admin) step(done []Completion) error {
	closed, err := a.submit()
	if err != nil {
		return err
	}
	if closed {
		return ErrClosed
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
	if a.seenGap > 0 {
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

// submit submits what was asked for and the keep alive that is due.
func (a *admin) submit() (closed bool, err error) {
	a.mu.Lock()
	asked := a.asked[:min(len(a.asked), a.q.Free())]
	a.asked = a.asked[len(asked):]
	closed = a.closed
	if a.aliveGap != a.seenGap {
		a.seenGap = a.aliveGap
		a.nextAlive = time.Now().Add(a.seenGap)
	}
	a.mu.Unlock()
	if closed {
		for _, c := range asked {
			a.calls[a.nextToken] = c
			a.nextToken++
		}
		return true, nil
	}
	for _, c := range asked {
		if err := a.start(c); err != nil {
			return false, err
		}
	}
	if a.seenGap > 0 && !time.Now().Before(a.nextAlive) && a.q.Free() > 0 {
		a.nextAlive = time.Now().Add(a.seenGap)
		c := new(adminCall)
		c.op.SQE.SetOpcode(nvme.AdminKeepAlive)
		return false, a.start(c)
	}
	return false, nil
}

func (a *admin) start(c *adminCall) error {
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
	if c.then != nil {
		c.then(c.cqe)
	}
	if c.done != nil {
		close(c.done)
	}
}

// Admin sends an admin or Fabrics command and waits for its completion, whatever its status.
// op.Data is filled or sent by way of a copy, so it is the caller's again when Admin returns.
func (c *Controller) Admin(ctx context.Context, op *Op) (nvme.CQE, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	call := &adminCall{op: *op, done: make(chan struct{})}
	call.op.Data = append([]byte(nil), op.Data...)
	if err := c.admin.ask(call); err != nil {
		return nvme.CQE{}, errors.Join(err, c.Err())
	}
	select {
	case <-call.done:
		if call.err != nil {
			return nvme.CQE{}, call.err
		}
		if directionOf(&op.SQE) == toHost {
			copy(op.Data, call.op.Data)
		}
		return call.cqe, nil
	case <-ctx.Done():
		return nvme.CQE{}, fmt.Errorf("admin opcode %#x: no answer: %w", op.SQE.Opcode(), ctx.Err())
	}
}

// AdminAsync is Admin for commands that may take long: the result comes from the function returned,
// which waits.
func (c *Controller) AdminAsync(ctx context.Context, op *Op) func() (nvme.CQE, error) {
	call := &adminCall{op: *op, done: make(chan struct{})}
	call.op.Data = append([]byte(nil), op.Data...)
	err := c.admin.ask(call)
	return func() (nvme.CQE, error) {
		if err != nil {
			return nvme.CQE{}, err
		}
		select {
		case <-call.done:
			return call.cqe, call.err
		case <-ctx.Done():
			return nvme.CQE{}, ctx.Err()
		}
	}
}

// Events delivers asynchronous events if Options.Events asked for some. The channel is closed when
// the admin queue is dead. Events that nobody takes are lost beyond the first 64.
func (c *Controller) Events() <-chan nvme.AsyncEvent { return c.admin.events }

// enableEvents configures events and keeps one Asynchronous Event Request outstanding, as Linux
// does.
func (c *Controller) enableEvents(ctx context.Context) error {
	if c.o.Events == 0 {
		return nil
	}
	if _, err := c.SetFeature(ctx, nvme.FeatureAsyncEventConfig, uint32(c.o.Events)); err != nil {
		return err
	}
	return c.admin.requestEvent()
}

// requestEvent submits an Asynchronous Event Request that renews itself. It may be called from the
// goroutine too.
func (a *admin) requestEvent() error {
	call := new(adminCall)
	call.op.SQE.SetOpcode(nvme.AdminAsyncEventReq)
	call.then = func(cqe nvme.CQE) {
		if !cqe.Status().OK() {
			return
		}
		select {
		case a.events <- nvme.AsyncEvent(cqe.DW0()):
		default:
		}
		_ = a.requestEvent()
	}
	return a.ask(call)
}
