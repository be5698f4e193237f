package dispatch

// Level is how far a namespace keeps its commands from its device, for its device to be exchanged.
// Each channel has a copy, which belongs to its reactor.
type Level uint8

const (
	// QuiesceNothing keeps nothing away.
	QuiesceNothing Level = iota
	// QuiesceZeroCopy lets no zero-copy read or write begin. Hosts decide how long they take, and
	// none may make others wait, so all end before commands wait.
	QuiesceZeroCopy
	// QuiesceIO has new IOs wait in pending. The IOs at the device complete, and then the channel
	// to the device is closed.
	QuiesceIO
)

// Quiesce tells every reactor. done is closed once each has reached l: no zero copy is left, or no
// channel to the device. Calls follow one another.
func (ns *Namespace) Quiesce(l Level) (done <-chan struct{}) {
	reached := make(chan struct{})
	ns.barrier(nil, func(f *fresh) {
		f.quiesce, f.changed = l, f.changed || l == QuiesceNothing
	}, func(ch *Channel, drained func()) { ch.setQuiesce(l, drained) }, func() { close(reached) })
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
	case ch.zeroCopies > 0:
		return
	case ch.quiesce == QuiesceIO:
		if ch.state == stateOpening || ch.inflight > 0 {
			return
		}
		ch.closeDevice()
		ch.state = stateNone
	}
	done := ch.onQuiesced
	ch.onQuiesced = nil
	done()
}
