package target

import (
	"cmp"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
)

// quiesce is how far a namespace keeps its commands from its device, for UpdateNamespace to
// exchange it. Each channel has a copy, which belongs to its reactor.
type quiesce uint8

const (
	quiesceNothing quiesce = iota
	// quiesceZeroCopy: no zero-copy read or write begins. Hosts decide how long they take, and none
	// may make others wait, so all end before commands wait.
	quiesceZeroCopy
	// quiesceIO: new IOs wait in pending, the IOs at the device complete, and then the channel to
	// the device is closed.
	quiesceIO
)

// setQuiesce tells every reactor and waits until each has reached l: no zero copy is left, or no
// channel to the device. It returns false if that takes longer than wait.
func (ns *namespace) setQuiesce(l quiesce, wait time.Duration) bool {
	done := make(chan struct{})
	ns.startQuiesce(l, func() { close(done) })
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	select {
	case <-done:
		return true
	case <-timeout.C:
	}
	select {
	case <-done: // both, for instance if no reactor has a channel
		return true
	default:
		return false
	}
}

// startQuiesce tells every reactor, and calls done once that is reached.
func (ns *namespace) startQuiesce(l quiesce, done func()) {
	ns.barrier(nil, func(f *freshChannel) {
		f.quiesce, f.changed = l, f.changed || l == quiesceNothing
	}, func(ch *channel, drained func()) { ch.setQuiesce(l, drained) }, done)
}

// setQuiesce adopts l, and calls done when that is reached.
func (ch *channel) setQuiesce(l quiesce, done func()) {
	ch.quiesce, ch.onQuiesced = l, done
	ch.h.schedule(ch)
	if l > quiesceNothing {
		return
	}
	ch.onQuiesced, ch.changed = nil, true
	if ch.state == channelNone {
		ch.open()
	}
	done()
}

// checkQuiesced checks whether the channel has reached quiesce, and calls onQuiesced if so.
func (ch *channel) checkQuiesced() {
	switch {
	case ch.zeroCopies > 0:
		return
	case ch.quiesce == quiesceIO:
		if ch.state == channelOpening || ch.inflight > 0 {
			return
		}
		ch.closeDevice()
		ch.state = channelNone
	}
	done := ch.onQuiesced
	ch.onQuiesced = nil
	done()
}

// check checks a pending IO against the present namespace: the command may have been prepared
// before a change.
func (ch *channel) check(g *geometry, a *attributes, io *backend.IO) error {
	switch s := ownerSession(io); {
	case !ch.permits(io), s != nil && ch.aborts(s):
		return errPreempted
	case s != nil && s.isOver():
		return backend.ErrAborted
	}
	return cmp.Or(a.check(io), g.check(io))
}

// check says why the namespace does not take an IO that it took once.
func (g *geometry) check(io *backend.IO) error {
	switch end := g.size(); {
	case g.info.Offline:
		return backend.ErrOffline
	case io.Op == backend.OpFlush || io.Op == backend.OpRead && io.Off+io.Len <= end:
		return nil
	case io.Off+io.Len > end:
		return backend.ErrOutOfRange
	case g.readOnly:
		return backend.ErrReadOnly
	}
	if s := ownerSession(io); s != nil && g.info.VolatileCache && s.ctrl.writeThrough.Load() &&
		io.Op != backend.OpDiscard {
		io.Flags |= backend.FUA
	}
	return nil
}
