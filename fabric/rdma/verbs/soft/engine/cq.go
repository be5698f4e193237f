package engine

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// CQ is a completion queue: a verbs.CQ. Its engine pushes completions, and one goroutine at a time
// polls. A queue pair holds its CQs, and both are of one engine.
type CQ struct {
	uses
	engine *Engine
	ch     *Channel // nil if none

	ring   []verbs.WC
	tail   atomic.Uint64 // the engine's
	head   atomic.Uint64 // of the goroutine that polls
	failed atomic.Bool
	armed  atomic.Bool
	// polling: Poll will look for completions, so they need no event.
	polling atomic.Bool
	// The following belong to the goroutine that polls. listening: the channel listens to the
	// engine's socket for this CQ. arming: no poll since ReqNotify was empty, and after that one
	// the caller may sleep.
	listening, arming bool
}

var errOverrun = errors.New("completion queue overrun: it is smaller than the work in flight")

// CreateCQ makes a completion queue of the engine of a completion vector.
func (d *Device) CreateCQ(entries int, ch verbs.CompChannel, vector int) (verbs.CQ, error) {
	fail := func(err error) (verbs.CQ, error) {
		return nil, fmt.Errorf("create completion queue of %d entries, vector %d: %w", entries,
			vector, err)
	}
	if entries < 1 || entries > maxCQE || vector < 0 {
		return fail(unix.EINVAL)
	}
	cq := &CQ{engine: d.Engine(vector), ring: make([]verbs.WC, powerOfTwo(entries))}
	if ch != nil {
		var ok bool
		if cq.ch, ok = ch.(*Channel); !ok || cq.ch.dev != d {
			return fail(unix.EINVAL)
		}
		if err := cq.ch.Hold(); err != nil {
			return fail(err)
		}
	}
	if err := reserve(&d.cqs, maxCQ); err != nil {
		if cq.ch != nil {
			cq.ch.Release()
		}
		return fail(err)
	}
	return cq, nil
}

// Push adds a completion. Engine held. If the queue is full it fails: CQ_ERR is raised, further
// polls fail, and Push returns false, now and later. The queue pair then goes to the error state.
func (cq *CQ) Push(wc *verbs.WC) bool {
	if cq.failed.Load() {
		return false
	}
	tail := cq.tail.Load()
	if tail-cq.head.Load() == uint64(len(cq.ring)) {
		cq.failed.Store(true)
		cq.engine.dev.Raise(verbs.AsyncEvent{Type: verbs.AsyncCQErr, CQ: cq})
		return false
	}
	cq.ring[tail&uint64(len(cq.ring)-1)] = *wc
	cq.tail.Store(tail + 1)
	// The goroutine that polls arms, and ends polling, before it looks at tail.
	if !cq.polling.Load() {
		cq.signal()
	}
	return true
}

// signal makes the channel readable if the queue is armed.
func (cq *CQ) signal() {
	if cq.armed.Load() && cq.armed.Swap(false) && cq.ch != nil {
		cq.ch.signal()
	}
}

// Poll makes one turn of the engine and takes completions out. See verbs.CQ. An armed queue stays
// armed if Poll takes all completions: most of them come in a turn of Poll, and events for them
// would only make the caller poll again. Therefore poll until there is none before you wait.
func (cq *CQ) Poll(wc []verbs.WC) (n int, err error) {
	cq.step(true)
	others := cq.engine.sleepers.Load()
	if cq.listening {
		others--
	}
	if cq.engine.dev.opts.Background {
		others-- // the background goroutine: finish sends packets that are left, without it
	}
	if cq.engine.left.Load() && (others > 0 || cq.head.Load() == cq.tail.Load()) {
		cq.step(false) // the others may be asleep, and the caller may go to sleep
	}
	if cq.engine.owed != nil && cq.engine.left.Load() {
		nudge(cq.engine.owed)
	}
	if cq.failed.Load() {
		return 0, errOverrun
	}
	head, tail := cq.head.Load(), cq.tail.Load()
	for ; n < len(wc) && head < tail; n++ {
		wc[n] = cq.ring[head&uint64(len(cq.ring)-1)]
		head++
	}
	cq.head.Store(head)
	cq.engine.attended.Store(!cq.arming || n > 0)
	cq.arming = cq.arming && n > 0
	if head < tail {
		cq.signal()
	}
	if cq.listening && !cq.armed.Load() {
		cq.listening = false
		cq.ch.unlisten(cq.engine)
	}
	return n, nil
}

func (cq *CQ) step(polled bool) {
	cq.polling.Store(true)
	cq.engine.makeStep(polled)
	cq.polling.Store(false)
}

// ReqNotify arms the queue: its channel becomes readable at the next completion. Without a
// background goroutine it also becomes readable when the engine has work that may lead to one: the
// caller polls then, and the queue stays armed. Poll once more after arming.
func (cq *CQ) ReqNotify() error {
	cq.armed.Store(true)
	cq.arming = true
	cq.engine.attended.Store(false)
	if cq.engine.arming != nil {
		nudge(cq.engine.arming)
	}
	if cq.ch == nil || cq.listening || cq.engine.dev.opts.Background {
		return nil
	}
	if err := cq.ch.listen(cq.engine); err != nil {
		return err
	}
	cq.listening = true
	return nil
}

// Destroy frees the queue. EBUSY while a queue pair uses it.
func (cq *CQ) Destroy() error {
	if err := cq.free(); err != nil {
		return fmt.Errorf("destroy completion queue: %w", err)
	}
	if cq.listening {
		cq.listening = false
		cq.ch.unlisten(cq.engine)
	}
	if cq.ch != nil {
		cq.ch.Release()
	}
	cq.engine.dev.cqs.Add(-1)
	return nil
}
