package target

import (
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

// capture captures the state of the controller, in the turn of its host: each capture takes
// processor time from the reactors. It waits for them, so no reactor calls it.
func (c *controller) capture() (data *[]byte, err error) {
	done := make(chan struct{})
	w := c.admin.hostWork(func() { data, err = c.captured() })
	w.Request(&admin.Waiter{Answered: func() { close(done) }})
	select {
	case <-done:
	case <-time.After(admin.AnswerWait):
		if c.t.workers.Cancel(&w.Job) {
			return nil, errNoTurn
		}
		<-done
	}
	return data, err
}

// captured is capture without the turn.
func (c *controller) captured() (*[]byte, error) {
	v := admin.Capture{
		Version: c.t.options.Firmware, Time: time.Now(),
		UptimeSeconds: time.Since(c.t.common.Started).Seconds(),
		Host:          c.hostNQN, ID: hex.EncodeToString(c.hostID[:]), Subsystem: c.sub.nqn,
		CNTLID: c.cntlid, Ready: c.ready.Load(), Limits: c.capturedLimits(),
	}
	var err error
	if v.Connections, err = c.capturedConnections(); err != nil {
		return nil, err
	}
	for _, ns := range c.namespaces() {
		if v.Truncated = len(v.Namespaces) == admin.TelemetryList; v.Truncated {
			break
		}
		v.Namespaces = append(v.Namespaces, captured(ns))
	}
	v.AddLines(c.t.hostLog.About(c.info.Remote.Addr(), c.hostNQN))
	return v.Encode()
}

func (c *controller) capturedConnections() ([]observed.Connection, error) {
	sessions := c.allQueues()
	sessions = sessions[max(len(sessions)-admin.TelemetryList, 0):]
	answers := make(chan *connections, len(sessions))
	for _, s := range sessions {
		s.h.post(func() {
			a := &connections{alive: map[*controller]keepAliveInfo{}}
			if !s.closed {
				a.add(s)
			}
			answers <- a
		})
	}
	var list []observed.Connection
	timeout := time.After(admin.AnswerWait)
	for range sessions {
		select {
		case <-timeout:
			return nil, errNoAnswer
		case a := <-answers:
			for _, i := range a.list {
				i.setKeepAlive(a.alive[c])
				i.Host, i.Subsystem = "", "" // the capture has them
				list = append(list, i.Connection)
			}
		}
	}
	slices.SortFunc(list,
		func(a, b observed.Connection) int { return int(a.QID) - int(b.QID) })
	return list, nil
}

func captured(ns *namespaces.Namespace) observed.Namespace {
	s := ns.Stats()
	s.Subsystem = "" // the capture has it
	maps.DeleteFunc(s.Errors, func(_ string, n uint64) bool { return n == 0 })
	return s
}

// capturedLimits returns the limits at which commands of the host may wait, besides those of
// namespaces.
func (c *controller) capturedLimits() (list []admin.CapturedLimit) {
	if l := c.t.hosts.Limiter(c.hostNQN); l != nil {
		list = append(list, admin.CapturedLimit{Of: "host", Limits: l.Describe()})
	}
	if l := c.sub.settings.Load().Limiter; l != nil {
		list = append(list, admin.CapturedLimit{Of: "subsystem", Limits: l.Describe()})
	}
	return list
}
