package dispatch

import (
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
)

// Level is how far a namespace keeps its commands from its device, for its device to be exchanged.
// Each channel has a copy, which belongs to its reactor.
type Level uint8

const (
	// QuiesceNothing keeps nothing away.
	QuiesceNothing Level = iota
	// QuiesceZeroCopy lets no zero-copy read or write begin. Hosts decide how long they take, and
	// none may make others wait, so all end before commands wait. So does a first flush.
	QuiesceZeroCopy
	// QuiesceIO has new IOs wait in pending. The IOs at the device complete, and then the channel
	// to the device is closed.
	QuiesceIO
)

// Quiesce tells every reactor. The result comes once each has reached l: no zero copy is left, or
// no channel to the device. With flush, each flushes before, and the result is an error if that
// fails. Calls follow one another.
func (ns *Namespace) Quiesce(l Level, flush bool) <-chan error {
	reached := make(chan error, 1)
	var failed atomic.Pointer[error]
	ns.barrier(nil, func(f *fresh) {
		f.quiesce, f.changed = l, f.changed || l == QuiesceNothing
	}, func(ch *Channel, drained func()) {
		io := &backend.IO{Op: backend.OpFlush} // a device may still have the last one
		if ch.flush = nil; flush {
			ch.flush = io
			if l < QuiesceIO && ch.state == stateOpen {
				ch.Queue(io)
			}
		}
		ch.setQuiesce(l, func() {
			if io.Err != nil {
				failed.Store(&io.Err)
			}
			drained()
		})
	}, func() {
		if err := failed.Load(); err != nil {
			reached <- *err
		}
		close(reached)
	})
	return reached
}

// setQuiesce adopts l, and calls done when that is reached.
func (ch *Channel) setQuiesce(l Level, done func()) {
	ch.quiesce, ch.onQuiesced = l, done
	ch.r.schedule(ch)
	if l > QuiesceNothing {
		return
	}
	ch.onQuiesced, ch.changed = nil, true
	if ch.state == stateNone {
		ch.open()
	}
	done()
}

// checkQuiesced checks whether the channel has reached quiesce, and calls onQuiesced if so.
func (ch *Channel) checkQuiesced() {
	switch {
	case ch.zeroCopies > 0, ch.flush != nil && ch.flush.On != nil:
		return
	case ch.quiesce == QuiesceIO:
		if ch.state == stateOpening || ch.inflight > 0 {
			return
		}
		if ch.flush != nil && ch.state == stateOpen {
			ch.submitFlush()
			return
		}
		ch.closeDevice()
		ch.state = stateNone
	}
	done := ch.onQuiesced
	ch.onQuiesced = nil
	done()
}

// submitFlush gives the flush to the device, which has no other IO.
func (ch *Channel) submitFlush() {
	if ch.dev.Submit([]*backend.IO{ch.flush}) == 0 {
		return // then the quiesce takes too long
	}
	ch.add(ch.flush, ch.sent)
	ch.flush, ch.inflight, ch.busySince = nil, 1, ch.r.Now()
	if !ch.active.Listed() {
		ch.r.active.Push(ch, &ch.active)
	}
}
