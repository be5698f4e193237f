package compound

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// device is a channel that keeps IOs until back is called. Its content is memory.
type device struct {
	content  []byte
	ios      list.List[backend.IO]
	canceled int
	orphans  int
	order    []int64 // of IOs, by offset
}

func (d *device) Submit(io *backend.IO) nvme.Status {
	d.ios.Push(io, &io.Place)
	d.order = append(d.order, io.Off)
	return nvme.Success
}

func (d *device) Withdraw(*backend.IO) bool { return false }
func (d *device) Cancel(*backend.IO)        { d.canceled++ }
func (d *device) Orphaned(*backend.IO)      { d.orphans++ }
func (d *device) OrphanBack()               { d.orphans-- }

// back gives the oldest IO back, after it was carried out.
func (d *device) back(st nvme.Status) {
	io := d.ios.Pop()
	at := d.content[io.Off : io.Off+io.Len]
	for _, s := range io.Segs {
		if io.Op == backend.OpRead {
			copy(s.B, at)
		} else if st.OK() {
			copy(at, s.B)
		}
		at = at[len(s.B):]
	}
	io.Owner.(*IO).Done(st)
}

// order is a command.
type order struct {
	Postponed
	*testing.T
	over     bool
	done     bool
	status   nvme.Status
	result   uint64
	err      error
	limited  bool // limits allow nothing
	takes    []int64
	finished *[]*order
}

func (c *order) Over() bool       { return c.over }
func (c *order) Failed(err error) { c.err = err }
func (c *order) GivenUp()         { c.Done(0, NotReady) }

func (c *order) Takes(n int64, _ bool) bool {
	c.takes = append(c.takes, n)
	return !c.limited
}

func (c *order) Done(result uint64, st nvme.Status) {
	testutil.True(c.T, !c.done, "the command completes again")
	c.done, c.result, c.status = true, result, st
	if c.finished != nil {
		*c.finished = append(*c.finished, c)
	}
}

// reactor is a pool with its time and its data memory.
type reactor struct {
	*testing.T
	*Pool
	d       *device
	posted  []func()
	resumed []*Postponed
	host    Owner
	flow    Flow
	share   mem.Flow
}

func newReactor(t *testing.T) *reactor {
	r := &reactor{T: t, d: &device{content: make([]byte, 8<<20)}}
	a := testutil.Value(mem.NewArena("test", 8<<20))(t)
	t.Cleanup(func() { testutil.Equal(t, a.Available(), 8<<20, "free memory") })
	r.Pool = NewPool(Config{
		Now: func() int64 { return 1 }, Memory: mem.NewPool(a, 0),
		Post:   func(fn func()) { r.posted = append(r.posted, fn) },
		Resume: func(p *Postponed) { r.resumed = append(r.resumed, p) },
	})
	for i := range r.d.content {
		r.d.content[i] = byte(i / 512)
	}
	r.share.Host = new(mem.Share)
	r.flow = NewFlow(&r.host)
	return r
}

// run polls, and gives IOs back, until nothing is left.
func (r *reactor) run() {
	for r.Poll() > 0 || !r.d.ios.Empty() {
		if !r.d.ios.Empty() {
			r.d.back(nvme.Success)
		}
	}
}

// read begins a command that reads.
func (r *reactor) read(o *Owner, f *Flow, v *Read, extents ...int64) *order {
	c := &order{T: r.T}
	for i := 0; i < len(extents); i += 2 {
		v.From = append(v.From, Extent{r.d, extents[i], extents[i+1]})
	}
	v.Flow = &r.share
	r.New(c, o).Read(r.d, f, v)
	return c
}

// TestCopy: the extents are written one after the other, and limits are asked for what is read and
// written.
func TestCopy(t *testing.T) {
	r := newReactor(t)
	want := slices.Concat(r.d.content[1<<20:1<<20+3*Chunk/2], r.d.content[512:1024])
	c := r.read(&r.host, &r.flow, &Read{Then: Copy, To: 4 << 20}, 1<<20, 3*Chunk/2, 512, 512)
	r.run()
	testutil.True(t, c.done && c.status.OK(), "done: %v, %v", c.done, c.status)
	testutil.True(t, bytes.Equal(r.d.content[4<<20:4<<20+len(want)], want), "the copy is wrong")
	testutil.EqualSlices(t, c.takes, []int64{2 * Chunk, Chunk, 1024}, "of the limits")
	testutil.True(t, r.Idle() && !r.Reading(), "something is left")
}

// TestCopyFails: a Copy that fails names the first extent that was not copied.
func TestCopyFails(t *testing.T) {
	r := newReactor(t)
	c := r.read(&r.host, &r.flow, &Read{Then: Copy, To: 4 << 20}, 0, 512, 512, 512, 1024, 512)
	for !c.done {
		r.Poll()
		st := nvme.Success
		if io := r.d.ios.First(); io.Op == backend.OpWrite && io.Off == 4<<20+512 {
			st = nvme.WriteFault
		}
		r.d.back(st)
	}
	testutil.True(t, c.status == nvme.WriteFault && c.result == 1, "%v, %d", c.status, c.result)
	testutil.True(t, c.err == nil, "the error of a write names a block of the destination")
}

// TestGiveUp: a command that is given up completes at once. Its memory and its work are free when
// the device has given the IOs back.
func TestGiveUp(t *testing.T) {
	for _, zero := range []bool{false, true} {
		t.Run(fmt.Sprint(zero), func(t *testing.T) {
			r := newReactor(t)
			c := &order{T: t}
			m := r.New(c, &r.host)
			if zero {
				m.Add(0, 4<<20)
				m.Zero(r.d, &r.flow, backend.OpWriteZeroes, 0)
			} else {
				v := &Read{From: []Extent{{r.d, 0, 2 * Chunk}}, Flow: &r.share}
				m.Read(r.d, &r.flow, v)
			}
			r.Poll()
			testutil.MustTrue(t, !c.done && !r.d.ios.Empty(), "it has not begun")
			m.GiveUp()
			testutil.True(t, c.done && c.status == NotReady && m.Command == nil, "%+v", c)
			testutil.True(t, r.d.orphans > 0 && r.d.canceled == r.d.orphans, "%+v", r.d)
			testutil.Equal(t, r.flow.outstanding, 0, "outstanding work")
			testutil.Equal(t, r.host.stuck, 1, "compounds that devices have")
			testutil.Equal(t, r.Memory.Usage().Orphaned > 0, !zero, "memory is the device's")
			r.inUse += mostCompounds
			testutil.True(t, r.mayHave(&r.host), "its owner may not have another one")
			r.inUse -= mostCompounds
			for !r.d.ios.Empty() {
				r.d.back(nvme.Success)
			}
			testutil.Equal(t, r.d.orphans, 0, "orphans")
			r.run()
			testutil.True(t, r.host.stuck == 0 && r.host.compounds == 0, "%+v", &r.host)
			testutil.True(t, r.Idle(), "something is left")
		})
	}
}

// TestAbort: a chunk that was read and waits for its turn is freed when the command is aborted, and
// is not written.
func TestAbort(t *testing.T) {
	r := newReactor(t)
	c := r.read(&r.host, &r.flow, &Read{Then: Copy, To: 4 << 20}, 0, 2*Chunk)
	r.Poll()
	m := r.d.ios.First().Owner.(*IO).Compound
	r.d.back(nvme.Success) // it has to wait for its turn
	testutil.MustTrue(t, !r.flow.reads.Empty(), "no chunk waits")
	m.Abort(nvme.AbortRequested)
	testutil.True(t, c.done && c.status == nvme.AbortRequested, "%+v", c)
	r.run()
	testutil.True(t, r.Idle(), "something is left")
	testutil.EqualSlices(t, r.d.order, []int64{0}, "IOs")
}

// TestOverAfterRead: nothing more is written once the queue has ended.
func TestOverAfterRead(t *testing.T) {
	r := newReactor(t)
	c := r.read(&r.host, &r.flow, &Read{Then: Copy, To: 4 << 20}, 0, 512)
	r.Poll()
	r.d.back(nvme.Success)
	c.over = true
	r.run()
	testutil.True(t, c.done && c.status == nvme.AbortedSQDeletion, "%+v", c)
	testutil.EqualSlices(t, r.d.order, []int64{0}, "IOs")
}

// TestTurnsByOwner: owners take turns by bytes, however many commands and flows one has.
func TestTurnsByOwner(t *testing.T) {
	r := newReactor(t)
	var other Owner
	flows := [3]Flow{NewFlow(&r.host), NewFlow(&r.host), NewFlow(&other)}
	for i := range 8 {
		r.read(&r.host, &flows[i%2], new(Read), int64(i)<<10, Chunk)
	}
	r.read(&other, &flows[2], new(Read), 4<<20, 3*Chunk)
	for range 6 {
		testutil.Equal(t, r.Poll(), 1, "pieces in a poll")
	}
	var of []bool
	for _, off := range r.d.order {
		of = append(of, off >= 4<<20)
	}
	testutil.EqualSlices(t, of, []bool{false, true, false, true, false, true}, "the other's turns")
	r.run()
	testutil.True(t, r.Idle(), "something is left")
}

// TestShare: commands of an owner that has its share of compounds are resumed in their order, as
// others end.
func TestShare(t *testing.T) {
	r := newReactor(t)
	n := 0
	var p [2]Postponed
	for ; !r.Postpones(&r.host, &p[0]); n++ {
		c := &order{T: t}
		r.New(c, &r.host).Flush(1, flusher{r.d, 0})
	}
	testutil.Equal(t, n, 2*mostCompounds/3, "compounds")
	testutil.True(t, r.Postpones(&r.host, &p[1]) && p[0].Listed(), "another one is not postponed")
	testutil.True(t, !r.Postpones(new(Owner), new(Postponed)), "another owner has none")
	for range n {
		r.d.back(nvme.Success)
	}
	testutil.True(t, len(r.resumed) == 2 && r.resumed[0] == &p[0], "%d resumed", len(r.resumed))
	testutil.True(t, r.Idle() && !p[1].Listed(), "something is left")
	free := 0
	for range r.free.All() {
		free++
	}
	testutil.True(t, free == mostSpare && r.spare == free, "%d are kept, %d counted", free, r.spare)
}

// flusher flushes a device in each step from a number on.
type flusher struct {
	d    *device
	from int
}

func (f flusher) Uses(Channel, int) bool { return true }
func (f flusher) Step(i int) (Channel, nvme.Status) {
	if i < f.from {
		return nil, nvme.Success
	}
	return f.d, nvme.Success
}

// TestFlush: a Flush takes a few steps in a turn, also if its compound has just had another Flush
// whose turn was to come.
func TestFlush(t *testing.T) {
	r := newReactor(t)
	first, second := &order{T: t}, &order{T: t}
	m := r.New(first, &r.host)
	m.Flush(10*flushLook, flusher{r.d, 10 * flushLook})
	testutil.True(t, !first.done && len(r.posted) == 1, "it takes all steps in one turn")
	testutil.Equal(t, m.next, flushLook, "steps")
	m.Abort(nvme.AbortRequested)
	testutil.MustTrue(t, first.done, "it was not aborted")
	testutil.MustTrue(t, r.New(second, &r.host) == m, "it is another compound")
	m.Flush(3*flushLook, flusher{r.d, 3*flushLook - 1})
	for len(r.posted) > 0 {
		r.posted[0]()
		r.posted = r.posted[1:]
	}
	testutil.MustTrue(t, !r.d.ios.Empty(), "the second one does not go on")
	r.d.back(nvme.Success)
	testutil.True(t, second.done && second.status.OK() && r.Idle(), "%+v", second)
}

// TestLateTurn: the turn of a Flush that has ended does nothing, even if its command has another
// one with the same compound.
func TestLateTurn(t *testing.T) {
	r := newReactor(t)
	c := &order{T: t}
	for i := range 2 {
		m := r.New(c, &r.host)
		m.Flush(3*flushLook, flusher{r.d, (i + 1) << 20})
		testutil.Equal(t, m.next, flushLook, "steps of Flush %d", i)
		if i > 0 {
			r.posted[0]()
			testutil.Equal(t, m.next, flushLook, "steps after a late turn")
		}
		m.Abort(nvme.AbortRequested)
		testutil.MustTrue(t, c.done, "it was not aborted")
		c.done = false
	}
}

// lock is the lock of a pair.
type lock struct{ held, released bool }

func (l *lock) Acquire() bool { return l.held }
func (l *lock) Release()      { l.released = true }

// TestPair: the Write of a pair is carried out if the data is equal, with the lock held. The first
// command completes first.
func TestPair(t *testing.T) {
	data := func(b byte) []mem.Segment { return []mem.Segment{{B: bytes.Repeat([]byte{b}, 512)}} }
	for _, equal := range []bool{true, false} {
		t.Run(fmt.Sprint(equal), func(t *testing.T) {
			r := newReactor(t)
			var finished []*order
			a, b := &order{T: t, finished: &finished}, &order{T: t, finished: &finished}
			l := new(lock)
			v := &Read{
				From: []Extent{{r.d, 512, 512}}, Then: CompareAndWrite, Flow: &r.share,
				Data: data(1), Second: b, Overwrite: data(7), Lock: l,
			}
			if !equal {
				v.Data = data(2)
			}
			m := r.New(a, &r.host)
			m.Read(r.d, nil, v)
			testutil.True(t, r.d.ios.Empty() && m.Waits(), "it begins without the lock")
			l.held = true
			v.GoOn()
			r.run()
			want, first, second := byte(7), nvme.Success, nvme.Success
			if !equal {
				want, first, second = 1, nvme.CompareFailure|nvme.DNR, nvme.AbortedFailedFused
			}
			testutil.Equal(t, r.d.content[512], want, "content")
			testutil.True(t, a.status == first && b.status == second, "%v, %v", a.status, b.status)
			testutil.EqualSlices(t, finished, []*order{a, b}, "order")
			testutil.True(t, l.released && r.Idle(), "the lock is not released")
			v.GoOn() // late: it does nothing
		})
	}
}

// TestPaidByPiece: limits are asked for each piece of a Write Zeroes but the first, and while they
// allow none, devices get nothing.
func TestPaidByPiece(t *testing.T) {
	r := newReactor(t)
	c := &order{T: t, limited: true}
	m := r.New(c, &r.host)
	m.Add(512, 3*ZeroPiece)
	m.Zero(r.d, &r.flow, backend.OpWriteZeroes, 0)
	r.run()
	testutil.EqualSlices(t, r.d.order, []int64{512}, "IOs")
	c.limited = false
	m.Admitted()
	r.run()
	testutil.True(t, c.done && c.status.OK() && r.Idle(), "%+v", c)
	testutil.EqualSlices(t, r.d.order, []int64{512, ZeroPiece, 2 * ZeroPiece, 3 * ZeroPiece}, "IOs")
}
