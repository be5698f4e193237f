package dispatch

import (
	"errors"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// reactor runs posted functions when a test steps it.
type reactor struct {
	*Channels
	posted []func()
	rounds []*Round
	io     *backend.IO // that the next round excludes
}

func newReactor() *reactor {
	r := new(reactor)
	r.Channels = NewChannels(Config{
		Now:   func() int64 { return 0 },
		Post:  func(fn func()) { r.posted = append(r.posted, fn) },
		Queue: func(*backend.IO) *Queue { return nil },
		Done:  func(*backend.IO) {},
		Exclude: func(_ *Channel, round *Round) func() int {
			r.rounds = append(r.rounds, round)
			return func() int {
				if r.io == nil || !round.Exclude(r.io, true) {
					return 0
				}
				r.io = nil
				return 1
			}
		},
	})
	r.checks = true // no walk goes on by itself
	return r
}

// walk takes the steps of all walks.
func (r *reactor) walk() {
	for r.walkOn() > 0 {
	}
}

// step runs the functions that are posted now, and polls.
func (r *reactor) step() {
	now := r.posted
	r.posted = nil
	for _, fn := range now {
		fn()
	}
	r.Process()
	r.Poll(batchSize)
}

// channel makes an open channel to a device.
func (r *reactor) channel(dev backend.Channel) *Channel {
	return &Channel{
		r: r.Channels, ns: &Namespace{Storage: storage{}}, dev: dev, state: stateOpen,
		ios:            ios{sent: new(list.List[backend.IO]), unseen: new(list.List[backend.IO])},
		channelBarrier: channelBarrier{holds: map[reservation.HostHandle][]*hold{}},
		fencing:        fencing{aborting: map[reservation.Host]int{}},
	}
}

// storage is a namespace.
type storage struct {
	Storage
	device backend.Device
	check  func(*backend.IO) error // nil: nothing is refused
	marked backend.Channel         // looks for marks; nil: there are none
}

func (s storage) Device() backend.Device { return s.device }

func (s storage) Mark(backend.Channel, func()) backend.Channel { return s.marked }

func (s storage) Check(io *backend.IO) error {
	if s.check == nil {
		return nil
	}
	return s.check(io)
}

// slowChannel is a device that takes room IOs, and gives them back when they are due.
type slowChannel struct {
	backend.Channel
	backend.Device
	room    int
	most    int // that Submit was offered, or Poll had room for, at once
	cancels int
	turn    *backend.Turn // a Poll takes a byte of it
	has     list.List[backend.IO]
	due     list.List[backend.IO]
}

func (c *slowChannel) Submit(ios []*backend.IO) int {
	c.most = max(c.most, len(ios))
	n := min(len(ios), c.room)
	c.room -= n
	for _, io := range ios[:n] {
		c.has.Push(io, &io.Node)
	}
	return n
}

func (c *slowChannel) OpenChannel(backend.Reactor) (backend.Channel, error) { return c, nil }

func (c *slowChannel) Cancel(*backend.IO) { c.cancels++ }

func (c *slowChannel) Close() error { return nil }

func (c *slowChannel) Poll(done []*backend.IO) int {
	c.most = max(c.most, len(done))
	c.turn.Take(1)
	n := c.due.Fill(done)
	c.room += n
	return n
}

// TestChannelSteps: however many IOs wait for a device, or are back from it, a step handles
// batchSize of them, in order, and one is withdrawn without a look at the others.
func TestChannelSteps(t *testing.T) {
	const waiting, room = 1000, 200
	slow := &slowChannel{room: room}
	ch := newReactor().channel(slow)
	var ios []*backend.IO
	for i := range waiting {
		io := &backend.IO{Op: backend.OpRead, Off: int64(i) * 512, Len: 512}
		ios = append(ios, io)
		testutil.MustTrue(t, ch.Queue(io), "the channel is closed")
	}
	for n := ch.push(); n > 0; n = ch.push() {
		testutil.MustTrue(t, n <= batchSize, "a step submits %d", n)
	}
	testutil.MustEqual(t, ch.inflight, room, "the device")
	visited := 0
	for range ch.sent.All() {
		visited++
	}
	testutil.True(t, visited == room, "%d IOs are looked at, the device has %d", visited, room)
	testutil.True(t, !ch.Withdraw(ios[0]) && ch.Withdraw(ios[room]) && !ch.Withdraw(ios[room]),
		"an IO of the device was withdrawn, or one that waits was not")
	next := 0
	for next < waiting {
		for io := slow.has.Pop(); io != nil; io = slow.has.Pop() {
			if next == room {
				next++
			}
			testutil.MustTrue(t, io == ios[next], "IO %d is not the next", next)
			next++
			slow.due.Push(io, &io.Node)
		}
		for n := ch.reap(); n > 0; n = ch.reap() {
			testutil.MustTrue(t, n <= batchSize, "a step takes %d back", n)
		}
		for ch.push() > 0 {
		}
	}
	for ch.reap() > 0 {
	}
	testutil.True(t, slow.most <= batchSize, "at most %d at once", slow.most)
	testutil.Equal(t, ch.State().Busy, State{}.Busy, "left")
}

// TestBytesOfPoll: devices get the bytes of a turn between two polls, and one IO more, unless they
// copy nothing or little. Channels take turns, and a device that refuses IOs takes no part.
func TestBytesOfPoll(t *testing.T) {
	const each = 64 << 10
	r := newReactor()
	devices := []*slowChannel{{}, {room: 1000}, {room: 1000}, {room: 1000}}
	var small *backend.IO
	for _, d := range devices {
		ch := r.channel(d)
		for range batchSize {
			testutil.MustTrue(t, ch.Queue(&backend.IO{Len: each}), "the channel is closed")
		}
		small = &backend.IO{Len: smallBytes}
	}
	free := r.channel(&slowChannel{room: 1000})
	r.Process()
	testutil.True(t, free.Queue(small) && free.Queue(&backend.IO{
		Op: backend.OpWrite, Flags: backend.ZeroCopy, Len: 1 << 20,
	}), "the channel is closed")
	r.Process()
	testutil.True(t, free.inflight == 2, "the device has %d IOs that need no turn", free.inflight)
	for last, n := 0, 0; last < 3*batchSize; last = n {
		r.Poll(batchSize)
		n = 0
		for _, d := range devices[1:] {
			n += 1000 - d.room
			testutil.True(t, last != batchSize || d.room < 1000, "a device has no turns")
		}
		more := (n - last) * each
		testutil.MustTrue(t, more > 0 && more <= turnBytes+each, "the devices get %d bytes", more)
	}
}

// TestPartOfIO: a Poll in which a device does a part of an IO has done something.
func TestPartOfIO(t *testing.T) {
	r := newReactor()
	slow := &slowChannel{room: 1}
	testutil.True(t, r.channel(slow).Queue(&backend.IO{Len: 512}), "the channel is closed")
	r.Process()
	testutil.Equal(t, r.Poll(batchSize), 0, "steps without work")
	slow.turn = &r.room
	testutil.Equal(t, r.Poll(batchSize), 1, "steps with a part of an IO")
}

// TestPollTurns: however many channels a Poll does not visit, or visits without room, all get on.
func TestPollTurns(t *testing.T) {
	for _, x := range []struct {
		lens          []int64 // of the IOs of each channel
		budget, polls int
	}{
		{[]int64{512, 512}, batchSize, 2},
		{slices.Repeat([]int64{512}, pollMost+1), 1 << 20, 2},
		{[]int64{turnBytes, turnBytes, 512, turnBytes}, batchSize, 16},
	} {
		r := newReactor()
		var devices []*slowChannel
		for _, n := range x.lens {
			d := &slowChannel{room: 1 << 20}
			devices = append(devices, d)
			for ch := r.channel(d); ch.waiting <= (x.polls+1)*batchSize; {
				ch.Queue(&backend.IO{Len: n})
			}
		}
		r.Process()
		for _, d := range devices {
			d.room = 1 << 20
		}
		for range x.polls {
			r.Poll(x.budget)
		}
		for i, d := range devices {
			testutil.True(t, d.room < 1<<20, "device %d of %d gets nothing", i, len(devices))
		}
	}
}

// TestHoldSteps: however many IOs a lock or late writes have held, and however many the device has,
// a channel goes on with batchSize of them at a time.
func TestHoldSteps(t *testing.T) {
	for _, n := range []int{10, 10000} {
		r := newReactor()
		ch := r.channel(&slowChannel{room: n})
		locks := []*Lock{{}, {}}
		for i := range n {
			io := &backend.IO{Op: backend.OpWrite, Off: int64(i) * 512, Len: 512}
			if i < 2 {
				ch.hold(locks[i])
			}
			ch.add(io, &ch.holds[allHosts][i%2].ios)
		}
		ch.release(locks[0])
		ch.release(locks[1])
		steps := 0
		for ; ch.inflight < n; steps++ {
			before := ch.inflight
			r.step()
			testutil.MustTrue(t, ch.inflight <= before+batchSize && ch.inflight != before,
				"a step gives the device %d", ch.inflight-before)
		}
		looked, ended := 0, false
		l := &await{done: func() { ended = true }}
		ch.search(l, func(*backend.IO) bool { looked++; return false })
		if io := ch.unseen.First(); io == nil != (n <= batchSize) || io != nil && ch.Withdraw(io) {
			t.Error("an IO that the device has is withdrawn, or none is left for the next turn")
		}
		for ; !ended; steps++ {
			testutil.MustTrue(t, looked <= batchSize, "a search looks at %d at a time", looked)
			looked = 0
			r.step()
		}
		want := n / batchSize
		testutil.True(t, steps >= want, "%d IOs take %d steps, want at least %d", n, steps, want)
	}
}

// TestReleaseInPoll: an IO that comes back in a Poll may release an IO of its own channel. The
// device then gets that one.
func TestReleaseInPoll(t *testing.T) {
	r := newReactor()
	slow := &slowChannel{room: 2}
	ch, lock := r.channel(slow), new(Lock)
	first := &backend.IO{Op: backend.OpWrite, Len: 512}
	testutil.MustTrue(t, ch.Queue(first), "the channel is closed")
	r.Process()
	ch.hold(lock)
	ch.add(&backend.IO{Op: backend.OpWrite, Len: 512}, &ch.holds[allHosts][0].ios)
	ch.awaits(first, new(awaited)).await(byLate, &await{done: func() { ch.release(lock) }})
	for io := slow.has.Pop(); io != nil; io = slow.has.Pop() {
		slow.due.Push(io, &io.Node)
		r.Poll(batchSize)
		r.Poll(batchSize)
	}
	testutil.Equal(t, ch.State().Busy, State{}.Busy, "left")
	testutil.True(t, r.active.Empty(), "an idle channel is polled")
}

// TestOpenInPush: an IO that fails, because the channel could not be opened, may be followed by one
// that opens it again. IOs after it wait for that.
func TestOpenInPush(t *testing.T) {
	r := newReactor()
	ch := r.channel(nil)
	opened := make(chan func(), 1)
	r.Post = func(fn func()) { opened <- fn }
	ch.ns.Storage = storage{device: &slowChannel{room: 2}}
	r.Done = func(*backend.IO) { ch.Queue(&backend.IO{Len: 512}) }
	ch.Queue(&backend.IO{Len: 512})
	ch.Queue(&backend.IO{Len: 512})
	ch.state = stateFailed
	r.Process()
	testutil.Receive(t, "the device is asked", opened)()
	r.Process()
	testutil.Equal(t, ch.inflight, 2, "IOs that the device has")
}

// TestCloseInPush: IOs that a step is about to submit keep their channel open, also if the
// completion of another one leaves nothing else to wait for.
func TestCloseInPush(t *testing.T) {
	r := newReactor()
	slow := &slowChannel{room: 1}
	ch := r.channel(slow)
	ch.changed, ch.ns.Storage = true, storage{check: func(io *backend.IO) error {
		if io.Op == backend.OpWrite {
			return backend.ErrOffline
		}
		return nil
	}}
	closed := false
	r.Done = func(io *backend.IO) {
		if io.Op == backend.OpWrite {
			ch.Close(func() { closed = true })
		}
	}
	ch.Queue(&backend.IO{Len: 512})
	ch.Queue(&backend.IO{Op: backend.OpWrite, Len: 512})
	r.Process()
	testutil.True(t, !closed && ch.inflight == 1, "closed: %t, IOs: %d", closed, ch.inflight)
	io := slow.has.Pop()
	slow.due.Push(io, &io.Node)
	r.Poll(batchSize)
	testutil.True(t, closed, "the channel stays open")
}

// TestMarkAfterCheck: a device that was offline may be back with marks when IOs are checked, and
// gets none of them without a look at the marks.
func TestMarkAfterCheck(t *testing.T) {
	r := newReactor()
	dev, looks := &slowChannel{room: 1}, &slowChannel{room: 1}
	ch := r.channel(dev)
	ch.ns.Storage = storage{check: func(*backend.IO) error {
		ch.ns.Storage = storage{marked: looks}
		return nil
	}}
	ch.Queue(&backend.IO{Len: 512})
	r.Process()
	testutil.True(t, dev.has.Empty() && !looks.has.Empty(), "the device has got an IO")
}

// comparing is a blocker that counts its comparisons.
type comparing struct{ n *int }

func (comparing) host() reservation.HostHandle { return allHosts }

func (c comparing) blocks(*backend.IO, *Queue) bool {
	*c.n++
	return false
}

// TestComparedSteps: however many holds a channel has, a step compares some IOs with them.
func TestComparedSteps(t *testing.T) {
	const ios = 4 * batchSize
	for _, holds := range []int{10, 100, 1000, 8192} {
		ch := newReactor().channel(&slowChannel{room: ios})
		compared := 0
		for range holds {
			ch.hold(comparing{&compared})
		}
		for range ios {
			ch.Queue(&backend.IO{Op: backend.OpWrite, Len: 512})
		}
		for steps := 0; ch.inflight < ios; steps++ {
			compared = 0
			ch.push()
			testutil.MustTrue(t, compared > 0 && compared <= comparedMost+holds && steps <= ios,
				"%d comparisons with %d holds in a step", compared, holds)
		}
	}
}

// TestPollPastHeld: held IOs do not keep later IOs from the device.
func TestPollPastHeld(t *testing.T) {
	r := newReactor()
	ch := r.channel(&slowChannel{room: 1000})
	ch.hold(&Lock{Blocks: backend.Range{End: 512}})
	for range 3 * batchSize {
		ch.Queue(&backend.IO{Op: backend.OpWrite, Len: turnBytes})
	}
	r.Poll(64)
	r.Process()
	testutil.Equal(t, ch.State().Busy.Held, batchSize, "held, without a turn of the device")
	for r.Poll(64) > 0 {
	}
	testutil.True(t, ch.pending.Empty(), "some are still pending")
}

// armedDevice is a channel of a device that has an IO. Poll disarms it.
type armedDevice struct {
	backend.Channel
	armed int
}

func (d *armedDevice) Arm() bool {
	d.armed++
	return true
}

func (d *armedDevice) Poll([]*backend.IO) int {
	d.armed = 0
	return 0
}

// TestArmSteps: however many channels have IOs at their devices, a turn arms pollMost of them.
func TestArmSteps(t *testing.T) {
	const n = 10 * pollMost
	r := newReactor()
	devices := make([]armedDevice, n)
	for i := range n {
		ch := r.channel(&devices[i])
		ch.inflight = 1
		r.active.Push(ch, &ch.active)
	}
	calls := 0
	for before := 0; !r.Arm(); calls++ {
		now := 0
		for i := range devices {
			now += devices[i].armed
		}
		testutil.MustTrue(t, now-before <= pollMost && calls <= n,
			"%d channels in a turn, %d turns", now-before, calls)
		before = now
		r.Poll(64)
	}
	for i := range devices {
		testutil.Equal(t, devices[i].armed, 1, "times that a channel was armed")
	}
}

// TestSharedFences: fences that come while a round waits share it, up to a bound, and then another.
func TestSharedFences(t *testing.T) {
	const fences = 2*sharedFences + 1
	r := newReactor()
	ch := r.channel(&slowChannel{})
	drained := 0
	a := (&reservation.State{Type: 1}).Access()
	fence := func() {
		ch.setAccess(a, &fence{change: new(reservation.Change), drained: func() { drained++ }})
	}
	for range fences {
		fence()
	}
	testutil.MustEqual(t, len(r.rounds), 3, "rounds")
	r.rounds[2].begin()
	fence()
	testutil.MustEqual(t, len(r.rounds), 4, "rounds, of which the last but one has begun")
	for i, round := range r.rounds {
		testutil.True(t, len(round.fences) <= sharedFences, "%d in round %d", len(round.fences), i)
	}
	r.walk()
	testutil.Equal(t, drained, fences+1, "fences have drained")
	testutil.Equal(t, ch.State().Busy, State{}.Busy, "left")
}

// busy makes a channel whose device has a write.
func (r *reactor) busy() (*Channel, *slowChannel, *backend.IO) {
	slow := &slowChannel{room: 1}
	ch := r.channel(slow)
	ch.Queue(&backend.IO{Op: backend.OpWrite, Len: 512})
	ch.push()
	return ch, slow, slow.has.Pop()
}

// preempt adds a fence of a host.
func (ch *Channel) preempt(host string, drained func()) {
	ch.setAccess(nil, &fence{
		aborted: map[reservation.Host]bool{{}: true}, drained: drained,
		change: &reservation.Change{Host: subnet.Owner{NQN: host}},
	})
}

// TestAbortedIO: a device is asked once to give an IO of a host back, for any number of fences.
// Only an IO that the device has aborted was preempted: one that has failed may have changed
// blocks.
func TestAbortedIO(t *testing.T) {
	failed := errors.New("failed")
	for err, want := range map[error]error{
		nil: nil, failed: failed, backend.ErrAborted: ErrPreempted,
	} {
		r := newReactor()
		ch, slow, io := r.busy()
		for range 2 {
			ch.preempt("", func() {})
			r.io = io
			r.walk()
			testutil.True(t, r.io == nil, "the IO is not excluded")
		}
		testutil.Equal(t, slow.cancels, 1, "times that the device is asked")
		io.Err = err
		slow.due.Push(io, &io.Node)
		ch.reap()
		testutil.True(t, io.Err == want, "%v, want %v", io.Err, want)
		testutil.Equal(t, ch.State().Busy, State{}.Busy, "left")
	}
}

// TestRoundsOfHosts: hosts take turns at rounds, so that of a later fence may come first. The
// earlier fence waits for the same IO nevertheless.
func TestRoundsOfHosts(t *testing.T) {
	r := newReactor()
	ch, slow, io := r.busy()
	drained := 0
	for range sharedFences + 1 {
		ch.preempt("", func() { drained++ })
	}
	testutil.MustEqual(t, len(r.rounds), 2, "rounds")
	for _, i := range []int{1, 0} {
		r.rounds[i].begin()
		testutil.True(t, r.rounds[i].Exclude(io, true), "round %d does not exclude the IO", i)
		r.rounds[i].end()
		testutil.MustEqual(t, drained, 0, "fences have drained while the device has the IO")
	}
	for r.later.Pop() != nil { // they have ended
	}
	slow.due.Push(io, &io.Node)
	ch.reap()
	testutil.Equal(t, drained, sharedFences+1, "fences have drained")
	testutil.Equal(t, ch.State().Busy, State{}.Busy, "left")
}

// TestFencesOfHosts: a fence of a host waits for one round of each other host, not for all rounds
// that these have asked for before. It waits for the IO of a round that came first.
func TestFencesOfHosts(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		r := newReactor()
		ch, slow, io := r.busy()
		var order []string
		fence := func(host string) { ch.preempt(host, func() { order = append(order, host) }) }
		for range 10 * sharedFences {
			fence("a")
		}
		fence("b")
		if hangs {
			r.io = io
			r.walk()
			testutil.MustEqual(t, len(order), 0, "fences have drained while the device has the IO")
		}
		slow.due.Push(io, &io.Node)
		ch.reap()
		r.walk()
		testutil.Equal(t, len(order), 10*sharedFences+1, "fences have drained")
		testutil.Equal(t, slices.Index(order, "b"), sharedFences, "fences before that of b")
		testutil.Equal(t, ch.State().Busy, State{}.Busy, "left")
	}
}

// TestCloseAfterHeld: a channel that is to close does so when its last IO, which is held, is
// withdrawn.
func TestCloseAfterHeld(t *testing.T) {
	r := newReactor()
	ch := r.channel(&slowChannel{room: 1})
	ch.hold(&Lock{Blocks: backend.Range{End: 512}})
	io := &backend.IO{Op: backend.OpWrite, Len: 512}
	ch.Queue(io)
	r.step()
	closed := false
	ch.Close(func() { closed = true })
	r.step()
	testutil.MustTrue(t, !closed && ch.waiting == 1, "the channel does not wait for the IO")
	testutil.MustTrue(t, ch.Abort(io, backend.ErrAborted), "the device has the IO")
	r.step()
	testutil.True(t, closed, "the channel stays open")
}

// TestUnion: ranges that overlap or touch are joined.
func TestUnion(t *testing.T) {
	ranges := func(at ...int64) (list []backend.Range) {
		for ; len(at) > 0; at = at[2:] {
			list = append(list, backend.Range{Off: at[0], End: at[1]})
		}
		return list
	}
	got := union(ranges(30, 40, 0, 10, 5, 8, 9, 12, 40, 50, 60, 70))
	testutil.EqualSlices(t, got, ranges(0, 12, 30, 50, 60, 70), "")
}

// TestLateWrites: late writes keep away what may change their blocks, from other queues only.
func TestLateWrites(t *testing.T) {
	own, other := new(Queue), new(Queue)
	w := &lateWrites{q: own, ranges: []backend.Range{{Off: 512, End: 1024}}}
	for _, c := range []struct {
		q      *Queue
		op     backend.Op
		off    int64
		blocks bool
	}{
		{other, backend.OpWrite, 512, true},
		{other, backend.OpDiscard, 0, true},
		{other, backend.OpWrite, 1024, false},
		{other, backend.OpRead, 512, false},
		{other, backend.OpFlush, 512, false},
		{own, backend.OpWrite, 512, false},
	} {
		io := &backend.IO{Op: c.op, Off: c.off, Len: 1024}
		testutil.Equal(t, w.blocks(io, c.q), c.blocks, "%v at %d, own queue %t", c.op, c.off,
			c.q == own)
	}
}

// TestRoundsInTurns: a round for one host waits for one of each other host, not for all that these
// have asked for before.
func TestRoundsInTurns(t *testing.T) {
	for _, n := range []int{10, 1000} {
		r := newReactor()
		var order []string
		round := func(host string) {
			r.startRound(subnet.Owner{NQN: host}, &Walk{
				Next: func() int { return 0 },
				Done: func() { order = append(order, host) },
			})
		}
		for range n {
			round("a")
		}
		round("b")
		r.walk()
		testutil.True(t, len(order) == n+1 && slices.Index(order, "b") == 1,
			"%d rounds, %d before that of another host", len(order), slices.Index(order, "b"))
	}
}
