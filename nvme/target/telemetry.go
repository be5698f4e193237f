package target

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

var (
	errNoAnswer = errors.New("a reactor does not answer")
	errNoTurn   = errors.New("too many controllers are captured")
)

// queueAnswers are the answers of the reactors that a capture has asked.
type queueAnswers struct {
	of   chan *connections // one for each queue
	left int               // that have not been received
}

func (a *queueAnswers) next(ctx context.Context) (*connections, error) {
	select {
	case <-ctx.Done():
		return nil, errNoAnswer
	case c := <-a.of:
		a.left--
		return c, nil
	}
}

// capture captures the state of the controller, in the turn of its host: each capture takes
// processor time from the reactors. It waits for their answers without a worker, and first for the
// answers to the last capture, so that few posts wait for a reactor that does not answer. No
// reactor calls it; one goroutine at a time.
func (c *controller) capture() (data *[]byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), admin.AnswerWait)
	defer cancel()
	asked := &c.answers
	for asked.left > 0 {
		if _, err := asked.next(ctx); err != nil {
			return nil, err
		}
	}
	if !c.inTurn(ctx, c.askQueues) {
		return nil, errNoTurn
	}
	var list []observed.Connection
	for asked.left > 0 {
		a, err := asked.next(ctx)
		if err != nil {
			return nil, err
		}
		for _, i := range a.list {
			i.setKeepAlive(a.alive[c])
			i.Host, i.Subsystem = "", "" // the capture has them
			list = append(list, i.Connection)
		}
	}
	if !c.inTurn(ctx, func() { data, err = c.captured(list) }) {
		return nil, errNoTurn
	}
	return data, err
}

// inTurn does work in the turn of the host and waits for its end. It reports whether the work has
// begun before the end of ctx.
func (c *controller) inTurn(ctx context.Context, work func()) bool {
	done := make(chan struct{})
	w := c.admin.hostWork(work)
	w.Request(&admin.Waiter{Answered: func() { close(done) }})
	select {
	case <-done:
	case <-ctx.Done():
		if c.t.workers.Cancel(&w.Job) {
			return false
		}
		<-done
	}
	return true
}

// captured makes the capture.
func (c *controller) captured(queues []observed.Connection) (*[]byte, error) {
	slices.SortFunc(queues,
		func(a, b observed.Connection) int { return int(a.QID) - int(b.QID) })
	v := admin.Capture{
		Version: c.t.shared.Firmware, Time: time.Now(),
		UptimeSeconds: time.Since(c.t.common.Started).Seconds(),
		Host:          c.HostNQN, ID: hex.EncodeToString(c.HostID[:]), Subsystem: c.sub.NQN,
		CNTLID: c.CNTLID, Ready: c.Ready.Load(), Limits: c.capturedLimits(), Connections: queues,
	}
	for _, ns := range c.Namespaces() {
		if v.Truncated = len(v.Namespaces) == admin.TelemetryList; v.Truncated {
			break
		}
		v.Namespaces = append(v.Namespaces, captured(ns))
	}
	v.AddLines(c.t.hostLog.About(c.Info.Remote.Addr(), c.HostNQN))
	return v.Encode()
}

// askQueues asks the reactors about the newest queues.
func (c *controller) askQueues() {
	sessions := c.allQueues()
	sessions = sessions[max(len(sessions)-admin.TelemetryList, 0):]
	answers := make(chan *connections, len(sessions))
	c.answers = queueAnswers{answers, len(sessions)}
	for _, s := range sessions {
		s.h.post(func() {
			a := &connections{alive: map[*controller]keepAliveInfo{}}
			if !s.closed {
				a.add(s)
			}
			answers <- a
		})
	}
}

func captured(ns *namespaces.Namespace) observed.Namespace {
	s := ns.Stats()
	s.Subsystem = "" // the capture has it
	maps.DeleteFunc(s.Errors, func(_ string, n uint64) bool { return n == 0 })
	return s
}

// capturedLimits returns the limits at which commands may wait, but for limits of namespaces.
func (c *controller) capturedLimits() (list []admin.CapturedLimit) {
	if l := c.t.hosts.Limiter(c.HostNQN); l != nil {
		list = append(list, admin.CapturedLimit{Of: "host", Limits: l.Describe()})
	}
	if l := c.sub.Settings.Load().Limiter; l != nil {
		list = append(list, admin.CapturedLimit{Of: "subsystem", Limits: l.Describe()})
	}
	return list
}
