package target

import (
	"context"

	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// ResetRequest is the request to a host to reset a controller.
type ResetRequest struct {
	c      *controller
	queues int // I/O queues at that time
}

// Begun reports whether the host has begun the reset, or the association has ended. Any goroutine
// may call it.
func (r *ResetRequest) Begun() bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.c.failed != nil || !r.c.Ready.Load() || len(r.c.queues) < r.queues
}

// HostNQN is the host.
func (r *ResetRequest) HostNQN() string { return r.c.HostNQN }

// Gone is closed when the association has ended.
func (r *ResetRequest) Gone() <-chan struct{} { return r.c.Gone }

// AskForResets asks the hosts of controllers that came through these ports to reset them, by the
// asynchronous event Persistent Internal Error (Base section 5.1.2.1). A Linux host (since 6.0)
// disconnects then and connects again at once, whereas it waits for its reconnect_delay after a
// connection that it has lost. Other hosts may do nothing. Controllers that are not enabled and
// discovery controllers are left out. The error is that of ctx, if it ends before all reactors have
// answered.
func (t *Target) AskForResets(ctx context.Context, port func(id uint16) bool) ([]*ResetRequest,
	error,
) {
	var list []*controller
	for _, s := range *t.table.Load() {
		s.each(func(c *controller) {
			if port(c.Info.PortID) {
				list = append(list, c)
			}
		})
	}
	answers := make(chan *ResetRequest, len(list))
	for _, c := range list {
		c.h.post(func() { answers <- c.askForReset() })
	}
	var asked []*ResetRequest
	for range list {
		select {
		case r := <-answers:
			if r != nil {
				asked = append(asked, r)
			}
		case <-ctx.Done():
			return asked, context.Cause(ctx)
		}
	}
	return asked, nil
}

// askForReset asks the host. It returns nil if the host cannot be asked. Admin reactor.
func (c *controller) askForReset() *ResetRequest {
	c.mu.Lock()
	r := &ResetRequest{c, len(c.queues)}
	c.mu.Unlock()
	if !c.Ready.Load() || !c.Events.Reports(admin.EventPersistentError) {
		return nil
	}
	c.Raise(admin.EventPersistentError)
	return r
}
