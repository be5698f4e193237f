package target

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
)

// channelState tells what a channel can do.
type channelState uint8

const (
	// Device.OpenChannel runs on an ordinary goroutine; IOs wait in pending
	channelOpening channelState = iota
	channelOpen                 // IOs are submitted and reaped
	channelFailed               // OpenChannel failed; IOs fail too until retryAt
)

// reopenAfter is how long a failed channel is left alone, in nanoseconds.
const reopenAfter = int64(1e9)

// channel is one reactor's way to the device of one namespace. It is opened by the first IO and
// closed when the namespace is retired.
type channel struct {
	h   *Handler
	ns  *namespace
	dev backend.Channel
	// lender is dev if that lends its blocks, receiver if data can be received into its memory.
	lender   backend.ZeroCopyReader
	receiver backend.ZeroCopyWriter
	state    channelState
	// pending are IOs not yet taken by the device, in order.
	pending  []*backend.IO
	inflight int
	loans    int // taken by reads, and reservations of writes, that are not released
	// touched and active say that the channel is in the lists of the handler of these names.
	touched, active bool
	stats           *ioStats
	unpublished     bool // stats has changed without an IO being reaped
	busySince       int64
	err             error // why opening failed
	retryAt         int64
	onClosed        func() // set when the namespace is retired
}

// submit queues an IO for the device of ns; the caller kicks afterwards. It returns false if the
// namespace is gone.
func (h *Handler) submit(ns *namespace, io *backend.IO) bool {
	ch := h.channel(ns)
	if ch == nil {
		if ch = h.openChannel(ns); ch == nil {
			return false
		}
	}
	if ch.state == channelFailed && h.loop.Now() >= ch.retryAt {
		ch.open()
	}
	io.Err = nil
	ch.pending = append(ch.pending, io)
	ch.touch()
	if h.watching == nil {
		h.watch()
	}
	return true
}

// channel is the channel of ns on this reactor, nil if there is none.
func (h *Handler) channel(ns *namespace) *channel {
	if ns.slot >= len(h.channels) {
		return nil
	}
	ch := h.channels[ns.slot]
	if ch == nil || ch.ns != ns { // the slot of a retired namespace may have another owner
		return nil
	}
	return ch
}

// touch has the next kick look at the channel.
func (ch *channel) touch() {
	if !ch.touched {
		ch.touched = true
		ch.h.touched = append(ch.h.touched, ch)
	}
}

// openChannel makes the channel of ns on this reactor and starts to open it. It returns nil if the
// namespace is retired.
func (h *Handler) openChannel(ns *namespace) *channel {
	stats := ns.users.join(h)
	if stats == nil {
		return nil
	}
	for len(h.channels) <= ns.slot {
		h.channels = append(h.channels, nil)
	}
	ch := &channel{h: h, ns: ns, stats: stats, pending: make([]*backend.IO, 0, 256)}
	h.channels[ns.slot] = ch
	ch.open()
	return ch
}

func (ch *channel) open() {
	ch.state = channelOpening
	go func() {
		dev, err := ch.ns.dev.OpenChannel(ch.h.reactor)
		ch.h.post(func() { ch.opened(dev, err) })
	}()
}

func (ch *channel) opened(dev backend.Channel, err error) {
	ch.dev, ch.state = dev, channelOpen
	ch.lender, _ = dev.(backend.ZeroCopyReader)
	ch.receiver, _ = dev.(backend.ZeroCopyWriter)
	if err != nil {
		ch.state, ch.err, ch.retryAt = channelFailed, err, ch.h.loop.Now()+reopenAfter
		ch.h.warn("opening a backend channel failed", "subsystem", ch.ns.sub.nqn, "nsid",
			ch.ns.nsid, "err", err)
	}
	ch.touch()
	ch.h.kick()
}

// push gives pending IOs to the device. It returns how many moved.
func (ch *channel) push() int {
	switch {
	case ch.state == channelOpening || len(ch.pending) == 0:
		return 0
	case ch.state == channelFailed:
		return ch.failPending()
	}
	n := ch.dev.Submit(ch.pending)
	if n > 0 {
		if ch.inflight == 0 {
			ch.busySince = ch.h.loop.Now()
		}
		ch.inflight += n
		rest := copy(ch.pending, ch.pending[n:])
		clear(ch.pending[rest:])
		ch.pending = ch.pending[:rest]
	}
	return n
}

// settle puts a busy channel on the list of those to poll, and closes one that is idle and to be
// closed.
func (ch *channel) settle() {
	switch {
	case ch.state == channelOpening || ch.active:
	case ch.inflight > 0 || len(ch.pending) > 0:
		ch.active = true
		ch.h.active = append(ch.h.active, ch)
	default:
		ch.closeIfIdle()
	}
}

func (ch *channel) failPending() int {
	err := fmt.Errorf("%w: %w", backend.ErrOffline, ch.err)
	n := 0
	for len(ch.pending) > 0 { // finishing one may append others
		io := ch.pending[0]
		ch.pending = ch.pending[:copy(ch.pending, ch.pending[1:])]
		io.Err = err
		ch.done(io)
		n++
	}
	return n
}

// reap takes what the device has finished. It returns how many.
func (ch *channel) reap() int {
	total := 0
	for ch.inflight > 0 {
		n := ch.dev.Poll(ch.h.finished[:])
		if n == 0 {
			break
		}
		ch.inflight -= n
		total += n
		for i, io := range ch.h.finished[:n] {
			ch.h.finished[i] = nil
			ch.done(io)
		}
	}
	if total > 0 && ch.inflight == 0 {
		ch.stats.own.busy += ch.h.loop.Now() - ch.busySince
	}
	if total > 0 || ch.unpublished {
		ch.unpublished = false
		ch.stats.publish()
	}
	return total
}

// done gives one finished IO back to the command it belongs to.
func (ch *channel) done(io *backend.IO) {
	switch {
	case io.Err == nil:
		ch.count(io.Op, io.Len)
	case errors.Is(io.Err, backend.ErrIO):
		ch.stats.own.mediaErrors++
		if errors.Is(io.Err, backend.ErrDegraded) {
			ch.ns.degrade(ch.h.t.log, io.Err)
		}
	}
	io.Segs = nil
	switch o := io.Owner.(type) {
	case *cmd:
		if len(o.own) > 0 {
			o.freeOwn(ch.h)
		}
		switch st := ioStatus(io); {
		case o.req == nil:
			ch.returned(o)
		case st == notReady:
			ch.h.finishLater(o, st)
		default:
			ch.h.finish(o, 0, st)
		}
	case *multiIO:
		o.m.ioDone(ch.h, o)
	}
}

// count adds a finished operation on n bytes to the counters.
func (ch *channel) count(op backend.Op, n int64) {
	st := &ch.stats.own
	switch op {
	case backend.OpRead:
		st.reads++
		st.readSectors += uint64(n) >> 9
	case backend.OpWrite:
		st.writes++
		st.wrotSecs += uint64(n) >> 9
	default:
		st.others[op-backend.OpFlush]++
	}
}

// purge takes the IOs of a dead queue that the device has not seen out of the line: the host may
// already retry them elsewhere, and a late write must not follow.
func (ch *channel) purge(s *session) {
	var dropped []*backend.IO
	kept := ch.pending[:0]
	for _, io := range ch.pending {
		if ownerSession(io) == s {
			dropped = append(dropped, io)
		} else {
			kept = append(kept, io)
		}
	}
	clear(ch.pending[len(kept):])
	ch.pending = kept
	for _, io := range dropped {
		io.Err = backend.ErrAborted
		ch.done(io)
	}
}

// ownerSession is the queue that an IO works for.
func ownerSession(io *backend.IO) *session {
	switch o := io.Owner.(type) {
	case *cmd:
		return o.s
	case *multiIO:
		if o.m.c != nil {
			return o.m.c.s
		}
	}
	return nil
}

// remove takes an IO that the device has not seen out of the queue.
func (ch *channel) remove(io *backend.IO) bool {
	for i, p := range ch.pending {
		if p == io {
			ch.pending = append(ch.pending[:i], ch.pending[i+1:]...)
			return true
		}
	}
	return false
}

// dropChannel closes the channel of a retired namespace once its IOs are back, and then calls done.
func (h *Handler) dropChannel(ns *namespace, done func()) {
	ch := h.channels[ns.slot]
	ch.onClosed = done
	ch.closeIfIdle()
}

func (ch *channel) closeIfIdle() {
	if ch.onClosed == nil || ch.state == channelOpening || ch.inflight > 0 || len(ch.pending) > 0 ||
		ch.loans > 0 {
		return
	}
	if ch.dev != nil {
		if err := ch.dev.Close(); err != nil {
			ch.h.warn("closing a backend channel failed", "subsystem", ch.ns.sub.nqn, "nsid",
				ch.ns.nsid, "err", err)
		}
	}
	ch.h.channels[ch.ns.slot] = nil
	done := ch.onClosed
	ch.onClosed = nil
	ch.h.unwatch()
	done()
}
