package target

import (
	"net/netip"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// This file changes the hosts that may have controllers, and the ports and networks of these hosts.

// enforce ends the controllers that are no longer permitted, and returns them. The caller has made
// the change visible before, so no more of them are admitted. Their queues may take a while to end,
// but commands that transports still have reach no device.
func (s *subsystem) enforce() (ended []*controller) {
	s.each(func(c *controller) {
		if err := c.Permitted(); err != nil {
			c.fail(err)
			c.stopIO()
			ended = append(ended, c)
		}
	})
	return ended
}

// EnforceKeys ends the controllers of hosts that have lost their key, and need one.
func (t *Target) EnforceKeys() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.keysChanged {
		return
	}
	t.keysChanged = false
	for _, s := range *t.table.Load() {
		s.enforce()
	}
	t.discovery.enforce()
	t.discoveryChanged() // it has only subsystems that a host could use
}

// SetHostKnown records whether the list of hosts of the configuration has an NQN, independently of
// the hosts of subsystems. Any goroutine may call it.
func (t *Target) SetHostKnown(nqn string, known bool) {
	t.shared.Hosts.SetKnown(nqn, known)
}

// SetHostNetworks binds a host to networks: in all subsystems, and for discovery, it may only
// connect from these, or from anywhere if there are none. Controllers that came from elsewhere end.
func (t *Target) SetHostNetworks(nqn string, networks []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.shared.Hosts.SetNetworks(nqn, networks) { // first: see enforce
		return
	}
	for _, s := range *t.table.Load() {
		s.enforce()
	}
	t.discovery.enforce()
}

// Settled returns a channel that is closed when the reactors have carried out all changes until
// now. From then on no device gets anything from hosts that have lost access.
func (t *Target) Settled() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	done, left := make(chan struct{}), new(atomic.Int64)
	left.Store(int64(len(t.handlers)) + 1)
	answer := func() {
		if left.Add(-1) == 0 {
			close(done)
		}
	}
	for _, h := range t.handlers {
		h.post(func() { // after the walks of onReactors
			h.dispatch.Start(&dispatch.Walk{Next: func() int { return 0 }, Done: answer})
		})
	}
	answer()
	return done
}

// SetPortListener sets the listener of a port, and the TLS policy that the discovery log shows for
// it. Controllers of subsystems that the listener does not serve end.
func (t *Target) SetPortListener(id uint16, listener string, tls fabric.TLSPolicy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ports.SetListener(id, listener, tls) // first: see enforce
	t.discoveryChanged()
	for _, s := range *t.table.Load() {
		s.enforce()
	}
}
