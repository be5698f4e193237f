package dispatch

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// state is the state of a channel.
type state uint8

const (
	stateNone    state = iota // IOs wait: nothing is open until QuiesceIO ends
	stateOpening              // IOs wait: Device.OpenChannel runs on an ordinary goroutine
	stateOpen                 // IOs are submitted and reaped
	stateFailed               // OpenChannel failed, and so do IOs until retryAt
	stateClosed               // the namespace is retired
)

// reopenAfter is the time between attempts to open a channel, in nanoseconds.
const reopenAfter = int64(1e9)

// Channel is one reactor's access to the device of one namespace. The first command for the
// namespace opens it; it is closed when the namespace is retired. It belongs to its reactor.
type Channel struct {
	// User is the state that the caller of Open has of the channel.
	User any
	// Access is the access of hosts to the namespace, nil without a reservation. Others read it.
	Access *reservation.Access

	r   *Channels
	ns  *Namespace
	dev backend.Channel
	// reader and writer are dev if it supports zero-copy reads and writes.
	reader   backend.ZeroCopyReader
	writer   backend.ZeroCopyWriter
	marked   bool // dev looks for marks
	state    state
	err      error // why opening failed
	retryAt  int64
	onClosed func() // set when the namespace is retired

	ios
	nodes
	stats     stats
	busySince int64

	fencing
	channelBarrier
}

// ios are the IOs of a channel.
type ios struct {
	pending  list.List[backend.IO] // for the device, in order
	waiting  int                   // IOs that the device does not have: pending, or held
	inflight int                   // IOs in the device: on sent and unseen
	sent     *list.List[backend.IO]
	unseen   *list.List[backend.IO] // by a search
	// zeroCopies is the number of zero-copy reads and writes that have not ended.
	zeroCopies int
}

// nodes place a channel on the lists with the same names in Channels.
type nodes struct {
	scheduled, active, behind, counted list.Node[Channel]

	armed uint64 // the Channels.armRound in which it was armed
}

// Open makes ch, which has its User only, the channel of ns on this reactor and starts to open it.
// It returns false if the namespace is retired.
func (r *Channels) Open(ch *Channel, ns *Namespace) bool {
	ch.r, ch.ns = r, ns
	f, ok := ns.join(ch)
	if !ok {
		return false
	}
	ch.quiesce, ch.changed = f.quiesce, f.changed
	ch.sent, ch.unseen = new(list.List[backend.IO]), new(list.List[backend.IO])
	ch.Access, ch.aborting = ns.Reservations.Access(), map[reservation.Host]int{} // after join
	ch.holds = map[reservation.HostHandle][]*hold{}
	for b := range f.holds { // bound: queues of the namespace's hosts, and a lock
		ch.hold(b)
	}
	if f.quiesce != QuiesceIO {
		ch.open()
	}
	return true
}

func (ch *Channel) open() {
	ch.state = stateOpening
	device := ch.ns.Storage.Device()
	go func() {
		dev, err := device.OpenChannel(ch.r.Reactor)
		ch.r.Post(func() { ch.opened(dev, err) })
	}()
}

func (ch *Channel) opened(dev backend.Channel, err error) {
	ch.dev, ch.state = dev, stateOpen
	ch.reader, _ = dev.(backend.ZeroCopyReader)
	ch.writer, _ = dev.(backend.ZeroCopyWriter)
	last := ch.err
	if ch.err = err; err != nil {
		ch.state, ch.retryAt = stateFailed, ch.r.Now()+reopenAfter
		if last == nil || last.Error() != err.Error() { // hosts retry for as long as it takes
			nqn, nsid := ch.ns.Storage.Name()
			ch.r.Log.Warn("opening a channel failed", "subsystem", nqn, "nsid", nsid, "err", err)
		}
	}
	ch.r.schedule(ch)
}

// Close closes the channel of a retired namespace once its IOs are back, and then calls done.
func (ch *Channel) Close(done func()) {
	ch.onClosed = done
	ch.settle()
}

// Closed reports whether the channel is closed.
func (ch *Channel) Closed() bool { return ch.state == stateClosed }

// settle continues a quiesce, or the end of a retired channel, if the device has no IOs of it.
func (ch *Channel) settle() {
	if ch.onQuiesced != nil {
		ch.checkQuiesced()
	}
	if ch.onClosed == nil || ch.state == stateOpening || ch.busy() || ch.zeroCopies > 0 {
		return
	}
	ch.closeDevice()
	ch.state = stateClosed
	ch.stats.publish()
	done := ch.onClosed
	ch.onClosed = nil
	done()
}

func (ch *Channel) closeDevice() {
	if ch.dev == nil {
		return
	}
	if err := ch.dev.Close(); err != nil {
		nqn, nsid := ch.ns.Storage.Name()
		ch.r.Log.Warn("closing a channel failed", "subsystem", nqn, "nsid", nsid, "err", err)
	}
	ch.dev, ch.reader, ch.writer, ch.marked = nil, nil, nil, false
}

// Queue queues an IO for the device. The caller has the reactor call Process afterwards. It returns
// false if the channel is closed.
func (ch *Channel) Queue(io *backend.IO) bool {
	switch {
	case ch.state == stateClosed:
		return false
	case ch.state == stateFailed && ch.r.Now() >= ch.retryAt:
		ch.open()
	}
	io.Err = nil
	ch.add(io, &ch.pending)
	ch.r.schedule(ch)
	return true
}

// Withdraw takes back an IO that the device has not seen. It returns false if the device has it.
func (ch *Channel) Withdraw(io *backend.IO) bool {
	if io.On == nil || ch.Has(io) {
		return false
	}
	ch.takeOut(io)
	if ch.onClosed != nil {
		ch.r.schedule(ch) // if the IO was held, nothing else visits the channel
	}
	return true
}

// Cancel asks the device to give an IO back that is no longer wanted.
func (ch *Channel) Cancel(io *backend.IO) {
	if d, ok := ch.dev.(backend.Canceler); ok {
		d.Cancel(io)
		ch.r.schedule(ch) // it may be back already
	}
}

// Has reports whether the device has an IO.
func (ch *Channel) Has(io *backend.IO) bool { return io.On == ch.sent || io.On == ch.unseen }

// add makes an IO the last one on a list.
func (ch *Channel) add(io *backend.IO, to *list.List[backend.IO]) {
	to.Push(io, &io.Place)
	io.On = to
	if to != ch.sent {
		ch.waiting++
	}
}

// takeOut takes an IO that the device does not have out of its list.
func (ch *Channel) takeOut(io *backend.IO) {
	io.On.Remove(&io.Place)
	io.On = nil
	ch.waiting--
}

// push submits pending IOs to the device, and completes IOs that must not reach it any more. It
// looks at batchSize of them, or less if the turn is over. It returns the number of IOs that the
// device accepted, or that completed or are held.
func (ch *Channel) push() int {
	if ch.quiesce == QuiesceIO || ch.state <= stateOpening || ch.pending.Empty() {
		return 0
	}
	batch, looked := ch.batch()
	if len(batch) == 0 {
		return looked
	}
	if !ch.marked { // after the checks: a device that was offline may be back with marks
		if dev := ch.ns.Storage.Mark(ch.dev, ch.r.Reactor.Wake); dev != nil {
			ch.dev, ch.marked = dev, true
		}
	}
	n := ch.dev.Submit(batch)
	for _, io := range batch[:n] {
		ch.sent.Push(io, &io.Place)
		io.On = ch.sent
	}
	ch.waiting -= n
	for i := len(batch) - 1; i >= n; i-- { // the device is full
		ch.pending.PushFirst(batch[i], &batch[i].Place)
		batch[i].On = &ch.pending
		ch.r.room.Left += copied(batch[i])
	}
	clear(batch)
	if ch.inflight == 0 && n > 0 {
		ch.busySince = ch.r.Now()
	}
	ch.inflight += n
	return looked + n
}

// comparedMost is the number of holds with which a step compares IOs. The last IO may exceed it: a
// host has a hold for each of its queues.
const comparedMost = 256

// batch takes at most batchSize IOs out of pending, and returns the IOs that the device may get,
// which still count as waiting. It completes or holds the others, and returns their number.
func (ch *Channel) batch() (batch []*backend.IO, looked int) {
	batch = ch.r.batch[:0]
	checked := ch.changed || ch.Access != nil || ch.r.checks ||
		ch.ns.Reservations.Place() != reservation.Here // write protected elsewhere, meanwhile
	for n, compared := 0, 0; n < batchSize && compared < comparedMost; n++ {
		io := ch.pending.First()
		if io == nil || ch.state == stateOpening || // done has begun to open it again
			ch.r.room.Left <= 0 && copied(io) > smallBytes {
			break
		}
		ch.takeOut(io)
		switch {
		case ch.state == stateFailed:
			io.Err = fmt.Errorf("%w: %w", backend.ErrOffline, ch.err)
		case checked:
			io.Err = ch.check(io)
		}
		switch {
		case io.Err != nil:
			ch.done(io) // which may add others
			looked++
		case len(ch.holds) > 0 && ch.block(io, &compared):
			looked++
		default:
			ch.r.room.Left -= copied(io)
			ch.waiting++
			batch = append(batch, io)
		}
	}
	return batch, looked
}

// copied is the number of bytes that a device copies for an IO, if it copies them.
func copied(io *backend.IO) int64 {
	if io.Op > backend.OpWrite || io.Flags&backend.ZeroCopy != 0 {
		return 0
	}
	return io.Len
}

// check checks a pending IO again: the namespace may have changed since its preparation.
func (ch *Channel) check(io *backend.IO) error {
	switch q := ch.r.Queue(io); {
	case !permits(ch.Access, io, q), q != nil && ch.aborts(q):
		return ErrPreempted
	case q != nil && q.Over:
		return backend.ErrAborted
	}
	return ch.ns.Storage.Check(io)
}

// reap takes back at most batchSize completed IOs from the device, and returns their number.
func (ch *Channel) reap() int {
	if ch.inflight == 0 {
		return 0
	}
	n := ch.dev.Poll(ch.r.reaped[:])
	if n == 0 {
		return 0
	}
	ios := ch.r.reaped[:n]
	ch.inflight -= n
	for _, io := range ios {
		io.On.Remove(&io.Place)
		io.On = nil
	}
	var ended []*await
	if ch.awaited > 0 {
		ended = ch.returned(ios)
	}
	for i, io := range ios {
		ios[i] = nil
		ch.done(io)
	}
	if ch.inflight == 0 {
		ch.stats.own[Busy] += uint64(ch.r.Now() - ch.busySince)
	}
	ch.stats.publish()
	for _, a := range ended {
		a.done()
	}
	return n
}

// done passes a completed IO to its command.
func (ch *Channel) done(io *backend.IO) {
	if io.Err == nil {
		ch.count(io.Op, io.Len)
	}
	ch.r.Done(io)
}

// Abort completes an IO with an error, or returns false if the device has it.
func (ch *Channel) Abort(io *backend.IO, err error) bool {
	if !ch.Withdraw(io) {
		return false
	}
	io.Err = err
	ch.done(io)
	return true
}

// busy reports whether IOs wait for the device or are in it.
func (ch *Channel) busy() bool { return ch.inflight > 0 || ch.waiting > 0 }

// polled reports whether the device has IOs or could take some.
func (ch *Channel) polled() bool {
	return ch.inflight > 0 || !ch.pending.Empty() &&
		ch.state > stateOpening && ch.quiesce != QuiesceIO
}

// pollOrSettle lets Poll visit a channel while that is of use.
func (ch *Channel) pollOrSettle() {
	if ch.onQuiesced != nil {
		ch.checkQuiesced()
	}
	switch {
	case ch.active.Listed():
	case ch.polled():
		ch.r.active.Push(ch, &ch.active)
	default:
		ch.settle()
	}
}

// State describes a channel for tests. Busy is zero without IOs, barriers and zero copy.
type State struct {
	Quiesce       Level
	Open, Closing bool
	Busy          struct {
		Inflight, Pending, Held, Awaited, Late, Fences, Locks, Others, Walks, ZeroCopies int
	}
}

// State returns the state of the channel.
func (ch *Channel) State() State {
	s := State{Quiesce: ch.quiesce, Open: ch.state == stateOpen, Closing: ch.onClosed != nil}
	b := &s.Busy
	b.Inflight, b.Awaited, b.ZeroCopies = ch.inflight, ch.awaited, ch.zeroCopies
	for range ch.pending.All() {
		b.Pending++
	}
	b.Held = ch.waiting - b.Pending
	b.Locks = len(ch.holds[allHosts])
	for _, holds := range ch.holds {
		b.Late += len(holds)
	}
	b.Late -= b.Locks
	b.Fences, b.Others = len(ch.fences), len(ch.aborting)+ch.orphans
	if len(ch.rounds) > 0 || !ch.unseen.Empty() {
		b.Others++
	}
	for range ch.r.own.All() {
		b.Walks++
	}
	if ch.r.round != nil || !ch.r.later.Empty() {
		b.Walks++
	}
	return s
}
