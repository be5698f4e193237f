package engine

import (
	"time"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// deadlines is a heap of endpoints by time. A deadline that is stopped or put off, as every
// acknowledgement does, stays where it is until its old time comes: an endpoint costs one step of
// the heap in the time of its deadline, however many packets it has.
type deadlines struct{ list.Heap[Handle] }

func (d *deadlines) set(h *Handle, at time.Duration) {
	h.at = at
	if at != 0 && (!h.deadline.Listed() || int64(at) < d.At(&h.deadline)) {
		d.Set(h, &h.deadline, int64(at))
	}
}

// first returns the earliest time at which something may be due, 0 if there is none.
func (d *deadlines) first() time.Duration {
	_, at := d.First()
	return time.Duration(at)
}

// pop looks at the earliest entry; its time has passed. It returns the endpoint if its deadline
// has passed, and nil if that was stopped or put off.
func (d *deadlines) pop(now time.Duration) *Handle {
	h, _ := d.First()
	if h.at > now {
		d.Set(h, &h.deadline, int64(h.at))
		return nil
	}
	due := h.at != 0
	d.remove(h)
	if !due {
		return nil
	}
	return h
}

// maxTidy is the largest number of stopped deadlines that tidy takes out.
const maxTidy = 4

// tidy takes deadlines that are stopped from the top. It reports whether there were any.
func (d *deadlines) tidy() (found bool) {
	for range maxTidy {
		h, _ := d.First()
		if h == nil || h.at != 0 {
			break
		}
		d.remove(h)
		found = true
	}
	return found
}

func (d *deadlines) remove(h *Handle) {
	h.at = 0
	d.Remove(&h.deadline)
}

// expire calls Expire of endpoints after their deadlines, and reports whether others wait.
func (e *Engine) expire() (more bool) {
	for range maxExpired {
		e.count.Add(1)
		if at := e.deadlines.first(); at == 0 || at > e.now {
			return false
		}
		if h := e.deadlines.pop(e.now); h != nil {
			h.ep.Expire()
			e.Schedule(h)
		}
	}
	at := e.deadlines.first()
	return at != 0 && at <= e.now
}

// tidyTime is the shortest time between two turns that take stopped deadlines out.
const tidyTime = 500 * time.Microsecond

// setTimer sets the socket's timer to the first deadline. Most deadlines are stopped, by an
// acknowledgment. A busy engine leaves them in the heap, as others follow; one with little to do
// would be woken for nothing.
func (e *Engine) setTimer() {
	if e.timer <= e.now {
		e.timer = 0 // it has fired
	}
	if e.now-e.tidied >= tidyTime && e.deadlines.tidy() {
		e.tidied = e.now
	}
	if at := e.deadlines.first(); at != e.timer && e.putOff == 0 { // else another turn follows
		e.timer = at
		e.conn.SetTimer(at)
	}
}
