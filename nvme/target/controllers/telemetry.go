package controllers

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// The errors of captures.
var (
	ErrNoAnswer = errors.New("a reactor does not answer")
	errNoTurn   = errors.New("too many controllers are captured")
)

// Work is a job that takes time for each namespace, controller or subsystem. The goroutines of
// Target.Workers do it in the turn of its owner. As an admin.Asker it has an answer when done.
type Work struct {
	turns.Job
	pool *turns.Pool
	done atomic.Bool
}

// NewWork makes work of a job.
func (t *Target) NewWork(j turns.Job) *Work { return &Work{Job: j, pool: &t.Workers} }

// Request implements admin.Asker: the work will begin in its turn.
func (w *Work) Request(a *admin.Waiter) bool {
	w.Done = func() {
		w.done.Store(true)
		a.Answered()
	}
	w.pool.Submit(&w.Job)
	return true
}

// Leave implements admin.Asker: work that has not begun is not done.
func (w *Work) Leave(*admin.Waiter) { w.pool.Cancel(&w.Job) }

// IsDone reports whether the work is done.
func (w *Work) IsDone() bool { return w.done.Load() }

// inTurn does work in the turn of the host and waits for its end. It reports whether the work has
// begun before the end of ctx.
func (c *Controller) inTurn(ctx context.Context, work func()) bool {
	done := make(chan struct{})
	w := c.Hooks.Work(work)
	w.Request(&admin.Waiter{Answered: func() { close(done) }})
	select {
	case <-done:
	case <-ctx.Done():
		if w.pool.Cancel(&w.Job) {
			return false
		}
		<-done
	}
	return true
}

// queueAnswers are the answers of the reactors that a capture has asked.
type queueAnswers struct {
	of   <-chan []observed.Connection // one for each queue
	left int                          // that have not been received
}

func (a *queueAnswers) next(ctx context.Context) ([]observed.Connection, error) {
	select {
	case <-ctx.Done():
		return nil, ErrNoAnswer
	case list := <-a.of:
		a.left--
		return list, nil
	}
}

// capture captures the state of the controller, in the turn of its host: each capture takes
// processor time from the reactors. It waits for their answers without a worker, and first for the
// answers to the last capture, so that few posts wait for a reactor that does not answer. No
// reactor calls it; one goroutine at a time.
func (c *Controller) capture() (data *[]byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), admin.AnswerWait)
	defer cancel()
	asked := &c.answers
	for asked.left > 0 {
		if _, err := asked.next(ctx); err != nil {
			return nil, err
		}
	}
	ask := func() { asked.of, asked.left = c.Hooks.Queues(admin.TelemetryList) }
	if !c.inTurn(ctx, ask) {
		return nil, errNoTurn
	}
	var list []observed.Connection
	for asked.left > 0 {
		queues, err := asked.next(ctx)
		if err != nil {
			return nil, err
		}
		for _, i := range queues {
			i.Host, i.Subsystem = "", "" // the capture has them
			list = append(list, i)
		}
	}
	if !c.inTurn(ctx, func() { data, err = c.captured(list) }) {
		return nil, errNoTurn
	}
	return data, err
}

// captured makes the capture.
func (c *Controller) captured(queues []observed.Connection) (*[]byte, error) {
	slices.SortFunc(queues, func(a, b observed.Connection) int { return int(a.QID) - int(b.QID) })
	v := admin.Capture{
		Version: c.Target.Firmware, Time: time.Now(),
		UptimeSeconds: time.Since(c.Target.Started).Seconds(),
		Host:          c.HostNQN, ID: hex.EncodeToString(c.HostID[:]), Subsystem: c.Subsystem.NQN,
		CNTLID: c.CNTLID, Ready: c.Ready.Load(), Limits: c.capturedLimits(), Connections: queues,
	}
	for _, ns := range c.Namespaces() {
		if v.Truncated = len(v.Namespaces) == admin.TelemetryList; v.Truncated {
			break
		}
		v.Namespaces = append(v.Namespaces, captured(ns))
	}
	v.AddLines(c.Target.HostLog.About(c.Info.Remote.Addr(), c.HostNQN))
	return v.Encode()
}

func captured(ns *namespaces.Namespace) observed.Namespace {
	s := ns.Stats()
	s.Subsystem = "" // the capture has it
	maps.DeleteFunc(s.Errors, func(_ string, n uint64) bool { return n == 0 })
	return s
}

// capturedLimits returns the limits at which commands may wait, but for limits of namespaces.
func (c *Controller) capturedLimits() (list []admin.CapturedLimit) {
	if l := c.Target.Hosts.Limiter(c.HostNQN); l != nil {
		list = append(list, admin.CapturedLimit{Of: "host", Limits: l.Describe()})
	}
	if l := c.Subsystem.Settings.Load().Limiter; l != nil {
		list = append(list, admin.CapturedLimit{Of: "subsystem", Limits: l.Describe()})
	}
	return list
}
