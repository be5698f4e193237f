package target

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// channelLists has the channels of a reactor.
type channelLists struct {
	channels  []*channel         // by namespace.slot
	opened    int                // channels that are not closed
	scheduled list.List[channel] // to be pushed and reaped by the next run
	active    list.List[channel] // busy: to be polled
	counted   list.List[channel] // completed zero-copy reads, which are not published yet
	reaped    [batchSize]*backend.IO
	batch     [batchSize]*backend.IO // of push
}

// arms is the state of Arm.
type arms struct {
	armRound uint64 // of the channels that are armed, see Arm
	arming   bool   // some are, and Arm goes on after the next Poll
}

// channelState is the state of a channel.
type channelState uint8

const (
	// IOs wait in pending: nothing is open until quiesceIO ends, or
	channelNone channelState = iota
	// Device.OpenChannel runs on an ordinary goroutine
	channelOpening
	channelOpen   // IOs are submitted and reaped
	channelFailed // OpenChannel failed, and so do IOs until retryAt
	channelClosed // the namespace is retired
)

const (
	// reopenAfter is the time between attempts to open a channel, in nanoseconds.
	reopenAfter = int64(1e9)
	// batchSize is how many IOs a channel gives to its device, and takes back, in one step.
	batchSize = 64
	// pollMost is how many channels a Poll visits.
	pollMost = 256
)

// channel is one reactor's access to the device of one namespace. The first command for the
// namespace opens it; it is closed when the namespace is retired.
type channel struct {
	h   *Handler
	ns  *namespace
	dev backend.Channel
	// reader and writer are dev if it supports zero-copy reads and writes.
	reader backend.ZeroCopyReader
	writer backend.ZeroCopyWriter
	marked bool // dev looks for marks
	state  channelState
	channelIO
	channelNodes
	// share is the data memory of the commands of all hosts for the namespace, including memory
	// that devices keep after the command was given up.
	share     mem.Share
	flows     list.List[flow] // of all hosts
	stats     *ioStats
	busySince int64
	err       error // why opening failed
	retryAt   int64
	onClosed  func() // set when the namespace is retired

	fencing
	channelBarrier
}

// channelIO are the IOs of a channel.
type channelIO struct {
	pending  list.List[backend.IO] // that the device may get, in order
	waiting  int                   // IOs that the device does not have: pending, or held
	inflight int                   // IOs in the device: on sent and unseen
	sent     *list.List[backend.IO]
	unseen   *list.List[backend.IO] // by a search
	// zeroCopies is the number of zero-copy reads and writes that have not ended.
	zeroCopies int
}

// channelNodes place a channel on lists of Handler.
type channelNodes struct {
	// The channel is on the list of Handler of the same name.
	scheduled, active, counted list.Node[channel]
	armed                      uint64 // the Handler.armRound in which it was armed
}

// Poll takes back completed IOs from devices and passes them on, continues commands that limits no
// longer delay, and begins the work of owners in turn. It returns the number of steps. It visits at
// most pollMost channels, and stops when budget is reached, which the last channel exceeds by less
// than 2*batchSize. The other channels come first in the next Poll.
func (h *Handler) Poll(budget int) int {
	n := h.gate.Poll()
	n += h.compounds.Poll()
	most := pollMost
	if h.arming { // Poll would disarm them
		most, h.arming = 0, false
	} else {
		h.armRound++
	}
	last := h.active.Last()
	for range most {
		ch := h.active.First()
		if ch == nil {
			break
		}
		h.active.Remove(&ch.active)
		n += ch.reap()
		n += ch.push()
		if ch.polled() {
			h.active.Push(ch, &ch.active)
		} else {
			ch.settle()
		}
		if ch == last || n >= budget {
			break
		}
	}
	if n > 0 {
		h.run()
	}
	return n
}

// Arm reports whether the reactor may sleep: devices wake it when they complete something, but an
// idle one that refused an IO must be offered it again. It arms at most pollMost channels: if
// others are left it returns false, and goes on unless something happens before.
func (h *Handler) Arm() bool {
	if h.gate.Ready() || h.compounds.Ready() {
		return false
	}
	for range pollMost { // bound: channels in a turn
		ch := h.active.First()
		switch {
		case ch == nil, ch.armed == h.armRound:
			return true
		case ch.inflight == 0 && !ch.pending.Empty(),
			ch.inflight > 0 && !ch.dev.Arm():
			return false
		}
		ch.armed = h.armRound
		h.active.Remove(&ch.active)
		h.active.Push(ch, &ch.active)
	}
	h.arming = true
	return false
}

// push submits pending IOs to the device, and completes IOs that must not reach it any more. It
// looks at batchSize of them. It returns the number of IOs that the device accepted, or that
// completed or are held.
func (ch *channel) push() int {
	if ch.quiesce == quiesceIO || ch.state <= channelOpening || ch.pending.Empty() {
		return 0
	}
	if !ch.marked && ch.state == channelOpen && ch.ns.marks.Begun() {
		ch.mark()
	}
	batch, looked := ch.batch()
	if len(batch) == 0 {
		return looked
	}
	n := ch.dev.Submit(batch)
	for _, io := range batch[:n] {
		ch.sent.Push(io, &io.Place)
		io.On = ch.sent
	}
	for i := len(batch) - 1; i >= n; i-- { // the device is full
		ch.pending.PushFirst(batch[i], &batch[i].Place)
		batch[i].On = &ch.pending
		ch.waiting++
	}
	clear(batch)
	ch.submitted(n)
	return looked + n
}

// batch takes at most batchSize IOs out of pending, and returns the IOs that the device may get. It
// completes or holds the others, and returns their number.
func (ch *channel) batch() (batch []*backend.IO, looked int) {
	batch = ch.h.batch[:0]
	g, a := ch.ns.geo.Load(), ch.ns.cfg.Load()
	checked := ch.changed || ch.access != nil || ch.h.walking
	for range batchSize {
		io := ch.pending.Pop()
		if io == nil {
			break
		}
		io.On = nil
		ch.waiting--
		switch {
		case ch.state == channelFailed:
			io.Err = fmt.Errorf("%w: %w", backend.ErrOffline, ch.err)
		case checked:
			io.Err = ch.check(g, a, io)
		}
		switch {
		case io.Err != nil:
			ch.done(io) // which may add others
			looked++
		case (ch.lock != nil || len(ch.avoids) > 0) && ch.block(io):
			looked++
		default:
			batch = append(batch, io)
		}
	}
	return batch, looked
}

// add makes an IO the last one on a list.
func (ch *channel) add(io *backend.IO, to *list.List[backend.IO]) {
	to.Push(io, &io.Place)
	io.On = to
	if to != ch.sent {
		ch.waiting++
	}
}

// takeOut takes an IO that the device does not have out of its list.
func (ch *channel) takeOut(io *backend.IO) {
	io.On.Remove(&io.Place)
	io.On = nil
	ch.waiting--
}

// has reports whether the device has an IO.
func (ch *channel) has(io *backend.IO) bool { return io.On == ch.sent || io.On == ch.unseen }

// submitted counts n IOs that the device has taken.
func (ch *channel) submitted(n int) {
	if ch.inflight == 0 && n > 0 {
		ch.busySince = ch.h.loop.Now()
	}
	ch.inflight += n
}

// reap takes back at most batchSize completed IOs from the device, and returns their number.
func (ch *channel) reap() int {
	if ch.inflight == 0 {
		return 0
	}
	n := ch.dev.Poll(ch.h.reaped[:])
	if n == 0 {
		return 0
	}
	ios := ch.h.reaped[:n]
	ch.inflight -= n
	for _, io := range ios {
		io.On.Remove(&io.Place)
		io.On = nil
	}
	var ended []*await
	if ch.awaited != nil {
		ended = ch.returned(ios)
	}
	for i, io := range ios {
		ios[i] = nil
		ch.done(io)
	}
	if ch.inflight == 0 {
		ch.stats.own[statBusy] += uint64(ch.h.loop.Now() - ch.busySince)
	}
	ch.stats.publish()
	for _, a := range ended {
		a.done()
	}
	return n
}

// done passes a completed IO to its command.
func (ch *channel) done(io *backend.IO) {
	st := nvme.Success
	if io.Err == nil {
		ch.count(io.Op, io.Len)
	} else {
		st = ch.failed(io)
	}
	switch o := io.Owner.(type) {
	case *cmd:
		switch {
		case o.req == nil:
			ch.takeBack(o)
		case st == notReady:
			ch.h.finishLater(o)
		default:
			ch.h.finish(o, 0, st)
		}
	case *compound.IO:
		o.Done(st)
	}
}

// count counts a successful operation on n bytes.
func (ch *channel) count(op backend.Op, n int64) {
	ch.stats.own[op]++
	if op <= backend.OpWrite {
		ch.stats.own[statSectors+int(op)] += uint64(n) >> 9
	}
}

// busy says that IOs wait for the device or are in it.
func (ch *channel) busy() bool { return ch.inflight > 0 || ch.waiting > 0 }

// polled says that the device has IOs or could take some.
func (ch *channel) polled() bool {
	return ch.inflight > 0 || !ch.pending.Empty() &&
		ch.state > channelOpening && ch.quiesce != quiesceIO
}

// pollOrSettle lets Poll visit a channel while that is of use.
func (ch *channel) pollOrSettle() {
	if ch.onQuiesced != nil {
		ch.checkQuiesced()
	}
	switch {
	case ch.active.Listed():
	case ch.polled():
		ch.h.active.Push(ch, &ch.active)
	default:
		ch.settle()
	}
}

// openChannel makes the channel of ns on this reactor and starts to open it. It returns nil if the
// namespace is retired.
func (h *Handler) openChannel(ns *namespace) *channel {
	stats, u := ns.users.join(h)
	if stats == nil {
		return nil
	}
	if more := ns.slot + 1 - len(h.channels); more > 0 {
		h.channels = append(h.channels, make([]*channel, more)...)
	}
	ch := &channel{h: h, ns: ns, stats: stats}
	ch.quiesce, ch.changed = u.quiesce, u.changed
	ch.sent, ch.unseen = new(list.List[backend.IO]), new(list.List[backend.IO])
	ch.access, ch.aborting = ns.reservations.Access(), map[reservation.Host]int{}
	ch.avoids = map[reservation.HostHandle][]*hold{}
	if u.lock != nil {
		ch.lock = &hold{by: u.lock}
	}
	for w := range u.late { // one for each queue with late writes
		ch.avoid(w)
	}
	h.channels[ns.slot] = ch
	h.opened++
	if u.quiesce != quiesceIO {
		ch.open()
	}
	return ch
}

func (ch *channel) open() {
	ch.state = channelOpening
	device := ch.ns.cfg.Load().dev
	go func() {
		dev, err := device.OpenChannel(ch.h.reactor)
		ch.h.post(func() { ch.opened(dev, err) })
	}()
}

func (ch *channel) opened(dev backend.Channel, err error) {
	ch.dev, ch.state = dev, channelOpen
	ch.reader, _ = dev.(backend.ZeroCopyReader)
	ch.writer, _ = dev.(backend.ZeroCopyWriter)
	last := ch.err
	if ch.err = err; err != nil {
		ch.state, ch.retryAt = channelFailed, ch.h.loop.Now()+reopenAfter
		if last == nil || last.Error() != err.Error() { // hosts retry for as long as it takes
			ch.h.t.log.Warn("opening a channel failed", "subsystem", ch.ns.sub.nqn, "nsid",
				ch.ns.nsid, "err", err)
		}
	}
	ch.h.schedule(ch)
}

// ownerSession is the queue that an IO works for, nil if its command was given up.
func ownerSession(io *backend.IO) *session {
	switch o := io.Owner.(type) {
	case *cmd:
		if o.req != nil {
			return o.s
		}
	case *compound.IO:
		if c, ok := o.Compound.Command.(*cmd); ok {
			return c.s
		}
	}
	return nil
}

// Withdraw takes back an IO that the device has not seen. It returns false if the device has it.
func (ch *channel) Withdraw(io *backend.IO) bool {
	if io.On == nil || ch.has(io) {
		return false
	}
	ch.takeOut(io)
	return true
}

// Cancel asks the device to give an IO back that is no longer wanted.
func (ch *channel) Cancel(io *backend.IO) {
	if d, ok := ch.dev.(backend.Canceler); ok {
		d.Cancel(io)
		ch.h.schedule(ch) // it may be back already
	}
}

// dropChannel closes the channel of a retired namespace once its IOs are back, and then calls done.
func (h *Handler) dropChannel(ns *namespace, done func()) {
	ch := h.channels[ns.slot]
	h.dropFlows(ch, func() {
		ch.onClosed = done
		ch.settle()
	})
}

// settle continues a quiesce, or the end of the channel of a retired namespace, if the device has
// no IOs of the channel.
func (ch *channel) settle() {
	if ch.onQuiesced != nil {
		ch.checkQuiesced()
	}
	if ch.onClosed == nil || ch.state == channelOpening || ch.busy() || ch.zeroCopies > 0 {
		return
	}
	ch.closeDevice()
	ch.state = channelClosed
	ch.h.channels[ch.ns.slot] = nil
	ch.h.opened--
	ch.stats.publish()
	done := ch.onClosed
	ch.onClosed = nil
	ch.h.stopTimeoutsIfIdle()
	done()
}

func (ch *channel) closeDevice() {
	if ch.dev == nil {
		return
	}
	if err := ch.dev.Close(); err != nil {
		ch.h.t.log.Warn("closing a channel failed", "subsystem", ch.ns.sub.nqn, "nsid",
			ch.ns.nsid, "err", err)
	}
	ch.dev, ch.reader, ch.writer, ch.marked = nil, nil, nil, false
}
