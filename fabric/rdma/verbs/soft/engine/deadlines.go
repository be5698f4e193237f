package engine

import (
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// deadlines is a heap of endpoints by time. A deadline that is stopped or put off, as every
// acknowledgement does, stays where it is until its old time comes: an endpoint costs one step of
// the heap in the time of its deadline, however many packets it has.
type deadlines struct {
	heap  []due
	count list.Steps
}

// ways is the number of entries below each: four make the heap half as high as two would.
const ways = 4

// due is an entry: at is at most h.at, unless that is 0.
type due struct {
	at time.Duration
	h  *Handle
}

// reserve makes room for the deadlines of n endpoints, so that set does not allocate.
func (d *deadlines) reserve(n int) {
	if n > cap(d.heap) {
		d.heap = slices.Grow(d.heap, n-len(d.heap))
	}
}

func (d *deadlines) set(h *Handle, at time.Duration) {
	h.at = at
	switch {
	case at == 0:
	case h.deadline == 0:
		d.heap = append(d.heap, due{at, h})
		d.up(len(d.heap) - 1)
	case at < d.heap[h.deadline-1].at:
		d.heap[h.deadline-1].at = at
		d.up(h.deadline - 1)
	}
}

// first returns the earliest time at which something may be due, 0 if there is none.
func (d *deadlines) first() time.Duration {
	if len(d.heap) == 0 {
		return 0
	}
	return d.heap[0].at
}

// pop looks at the earliest entry; its time has passed. It returns the endpoint if its deadline
// has passed, and nil if that was stopped or put off.
func (d *deadlines) pop(now time.Duration) *Handle {
	e := d.heap[0]
	if e.h.at > now {
		d.heap[0].at = e.h.at
		d.down(0)
		return nil
	}
	due := e.h.at != 0
	d.remove(e.h)
	if !due {
		return nil
	}
	return e.h
}

// maxTidy is the largest number of stopped deadlines that tidy takes out.
const maxTidy = 4

// tidy takes deadlines that are stopped from the top. It reports whether there were any.
func (d *deadlines) tidy() (found bool) {
	for range maxTidy {
		if len(d.heap) == 0 || d.heap[0].h.at != 0 {
			break
		}
		d.remove(d.heap[0].h)
		found = true
	}
	return found
}

func (d *deadlines) remove(h *Handle) {
	h.at = 0
	if h.deadline == 0 {
		return
	}
	i, last := h.deadline-1, len(d.heap)-1
	h.deadline = 0
	moved := d.heap[last]
	d.heap[last] = due{}
	d.heap = d.heap[:last]
	if i < last {
		d.place(i, moved)
		d.up(i)
		d.down(moved.h.deadline - 1)
	}
}

func (d *deadlines) place(i int, e due) {
	d.count.Add(1)
	d.heap[i] = e
	e.h.deadline = i + 1
}

func (d *deadlines) up(i int) {
	e := d.heap[i]
	for i > 0 && e.at < d.heap[(i-1)/ways].at {
		d.place(i, d.heap[(i-1)/ways])
		i = (i - 1) / ways
	}
	d.place(i, e)
}

func (d *deadlines) down(i int) {
	e := d.heap[i]
	for {
		least := i
		at := e.at
		for c := ways*i + 1; c <= ways*(i+1) && c < len(d.heap); c++ {
			if d.heap[c].at < at {
				least, at = c, d.heap[c].at
			}
		}
		if least == i {
			d.place(i, e)
			return
		}
		d.place(i, d.heap[least])
		i = least
	}
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
