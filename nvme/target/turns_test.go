package target

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// counter is a device that counts its IOs.
type counter struct {
	backend.Device
	ios  int
	work int64 // bytes, as turns count them
	most int64 // bytes of the largest one
}

func (d *counter) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	ch, err := d.Device.OpenChannel(r)
	return &countedChannel{ch, d}, err
}

type countedChannel struct {
	backend.Channel
	d *counter
}

func (c *countedChannel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		c.d.ios++
		c.d.most = max(c.d.most, io.Len)
		c.d.work += max(min(io.Len, turnWork), leastWork)
	}
	return c.Channel.Submit(ios)
}

// take returns the counts since the last call.
func (d *counter) take() (ios int, work int64) {
	ios, work = d.ios, d.work
	d.ios, d.work = 0, 0
	return ios, work
}

const turnsSize = 64 << 20 // of a namespace

// The bounds of package compound.
const (
	compoundWidth = 8
	readWidth     = 4
	flushLook     = 64
	mostCompounds = 512
	turnWork      = compound.Chunk
	leastWork     = 4 << 10
	flowWork      = 1 << 20
	discardPiece  = 8 << 20
)

// compounds returns the number of commands of hosts that have compounds.
func compounds(h *Handler) (n int) {
	for s := range h.sessions.All() {
		for _, c := range s.cmds[:s.used] {
			if c.compound != nil && c.then == nil {
				n++
			}
		}
	}
	return n
}

// turnsSubsystem has a namespace with a wrapped device for each wrap.
func turnsSubsystem(t *testing.T, wrap ...func(backend.Device) backend.Device) subsystems.Config {
	s := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	for i, wrap := range wrap {
		s.Namespaces = append(s.Namespaces, namespaces.Config{
			NSID: uint32(i + 1), Device: wrap(ramDevice(t, turnsSize, 512)),
			Timeout: 20 * time.Second,
		})
	}
	return s
}

// faultyTurns makes a target with a faulty namespace, and further ones.
func faultyTurns(t *testing.T, more ...func(backend.Device) backend.Device) (r *harness,
	f *backendtest.Faulty,
) {
	first := func(dev backend.Device) backend.Device {
		f = backendtest.NewFaulty(dev)
		return f
	}
	r = newHarness(t, 1, turnsSubsystem(t, slices.Insert(more, 0, first)...))
	return r, f
}

// countedTurns is faultyTurns with a device that counts.
func countedTurns(t *testing.T, d *counter) (r *harness, f *backendtest.Faulty) {
	r = newHarness(t, 1, turnsSubsystem(t, func(dev backend.Device) backend.Device {
		f = backendtest.NewFaulty(dev)
		d.Device = f
		return d
	}))
	return r, f
}

func asIs(dev backend.Device) backend.Device { return dev }

// turnsKinds are the commands that take turns. Each of them, except commands with data, is for
// several pieces.
var turnsKinds = []struct {
	name string
	make func(nsid uint32) *fabrictest.Command
	// piece is the most that a device gets at once, in bytes.
	piece int64
}{
	{"copy", func(nsid uint32) *fabrictest.Command {
		const half = turnsSize / 2 / 512
		c := copyTo(half, nvme.CopyRanges, source{nsid, 0, 256}, source{nsid, 256, 512},
			source{nsid, 1024, 2048})
		c.SQE.SetNSID(nsid)
		return c
	}, compound.Chunk},
	{"verify", func(nsid uint32) *fabrictest.Command {
		return rw(nvme.NVMVerify, nsid, 0, 2048, nil)
	}, compound.Chunk},
	{"compare", func(nsid uint32) *fabrictest.Command {
		c := rw(nvme.NVMCompare, nsid, 0, 32, make([]byte, 16384))
		c.InCapsule = true
		return c
	}, compound.Chunk},
	{"write zeroes", func(nsid uint32) *fabrictest.Command {
		return rw(nvme.NVMWriteZeroes, nsid, 1, 8192, nil)
	}, compound.ZeroPiece},
	{"discard", func(nsid uint32) *fabrictest.Command {
		return dsm(nsid, true, [2]uint64{7, 50000}, [2]uint64{60000, 10}, [2]uint64{0, 0},
			[2]uint64{60100, 1})
	}, discardPiece},
}

// TestTurns: a reactor begins one piece of the commands that make the target work in a poll,
// however many there are, so that another host's reads come in between; and devices have a bounded
// part.
func TestTurns(t *testing.T) {
	t.Parallel() // it computes
	for _, kind := range turnsKinds {
		for _, queues := range []int{1, 64} {
			t.Run(fmt.Sprintf("%s/%d", kind.name, queues), func(t *testing.T) {
				var d counter
				r, f := countedTurns(t, &d)
				a := r.connectHost(queues)
				b := r.connectOther()
				r.ok(b.io[0], rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
				each := 96
				if queues > 1 {
					each = 8
				}
				var all []*fabrictest.Command
				again := true
				for _, q := range a.io {
					for range each {
						c := kind.make(1)
						c.Then = func() {
							if again {
								c.Reset()
								r.send(q, c)
							}
						}
						all = append(all, r.send(q, c))
					}
				}
				b.io[0].NoZeroCopy = true
				d.take()
				total := 0
				for i := range 100 {
					r.w.Step()
					ios, work := d.take()
					if total += ios; work > turnWork {
						t.Fatalf("poll %d: the device gets %d IOs with %d bytes, want at most %d",
							i, ios, work, turnWork)
					}
					read := r.send(b.io[0], rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
					testutil.MustTrue(t, read.Done && read.CQE.Status().OK(),
						"a read of another host waits")
					d.take()
				}
				testutil.True(t, total >= 48, "%d IOs in 100 polls", total)
				f.Hold(nil)
				r.w.Settle()
				if _, work := d.take(); work < flowWork || work >= flowWork+turnWork {
					t.Errorf("the device has %d bytes, want %d", work, flowWork)
				}
				held := f.Held()
				r.send(b.io[0], rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
				testutil.True(t, f.Held() == held+1,
					"a read of another host does not reach the device")
				f.Release()
				testutil.True(t, d.most <= kind.piece, "the device gets %d bytes, want at most %d",
					d.most, kind.piece)
				again = false
				r.until("all end", func() bool {
					for len(all) > 0 && all[0].Done {
						if st := all[0].CQE.Status(); !st.OK() {
							t.Errorf("%v", st)
						}
						all = all[1:]
					}
					return len(all) == 0
				})
				if h := r.raw[0]; h.compounds.Ready() {
					t.Error("a host waits for its turn, and has nothing to do")
				}
			})
		}
	}
}

// TestTurnsByBytes: hosts get the same number of bytes, for any kind and number of commands, and
// any number of queues.
func TestTurnsByBytes(t *testing.T) {
	t.Parallel() // it computes
	for i, one := range turnsKinds {
		for _, other := range turnsKinds[:i+1] {
			t.Run(one.name+" and "+other.name, func(t *testing.T) {
				var d [2]counter
				wrap := func(i int) func(backend.Device) backend.Device {
					return func(dev backend.Device) backend.Device {
						d[i].Device = dev
						return &d[i]
					}
				}
				r, many := joined(t, 1, 8, turnsSubsystem(t, wrap(0), wrap(1)))
				few := r.connectOther()
				r.ok(many.io[0], command(nvme.NVMFlush, 1, nil)) // opens the channels
				r.ok(few.io[0], command(nvme.NVMFlush, 2, nil))
				keep := func(q *fabrictest.Queue, c *fabrictest.Command) {
					c.Then = func() {
						c.Reset()
						if !r.t.Failed() {
							_ = q.Send(c)
						}
					}
					r.send(q, c)
				}
				for _, q := range many.io {
					for range 32 {
						keep(q, one.make(1))
					}
				}
				for range 8 {
					keep(few.io[0], other.make(2))
				}
				d[0].take()
				d[1].take()
				for range 250 {
					r.w.Step()
				}
				_, a := d[0].take()
				_, b := d[1].take()
				if one.name == "compare" { // the device has no part in the other half of the work
					a *= 2
				}
				if other.name == "compare" {
					b *= 2
				}
				testutil.True(t, a+b >= 25<<20 && max(a, b)-min(a, b) <= (a+b)/20,
					"%d MiB and %d MiB", a>>20, b>>20)
				many.hangUp()
				few.hangUp()
			})
		}
	}
}

// TestPostponed: a host has its share of compounds and leaves another one some. Its other commands
// have nothing but their requests, end at once when they are aborted or their queue ends, and are
// carried out in their order.
func TestPostponed(t *testing.T) {
	const most = 2 * mostCompounds / 3
	for _, kind := range turnsKinds {
		t.Run(kind.name, func(t *testing.T) {
			r, f := faultyTurns(t)
			a, b := r.connectHost(5), r.connectOther()
			h := r.raw[0]
			f.Hold(nil)
			defer f.Release()
			var all [][]*fabrictest.Command
			for _, q := range a.io {
				var list []*fabrictest.Command
				for range 100 {
					c := kind.make(1)
					list = append(list, r.send(q, c))
				}
				all = append(all, list)
			}
			r.w.Settle()
			testutil.Equal(t, compounds(h), most, "compounds")
			other := r.send(b.io[0], kind.make(1))
			r.w.Settle()
			testutil.Equal(t, compounds(h), most+1, "compounds with that of another host")
			last := all[4][99]
			r.abortAndHangUp(a, 5, last, 4)
			f.Release()
			r.until("all end", func() bool {
				for len(all[3]) > 0 && all[3][0].Done {
					all[3] = all[3][1:]
				}
				return len(all[3]) == 0 && other.Done
			})
			r.w.Settle()
			for i, list := range all[:3] {
				for j, c := range list {
					if st := c.CQE.Status(); !c.Done || !st.OK() {
						t.Fatalf("queue %d, command %d: done %v, %v", i, j, c.Done, st)
					}
				}
			}
			testutil.True(t, h.compounds.Idle() && other.CQE.Status().OK(),
				"compounds are left; %v", other.CQE.Status())
		})
	}
}

// TestTurnsEnd: a command that waits for its turn ends at once when it is aborted, its queue ends,
// or its host leaves. When the device hangs, all commands for it end, and commands for others go
// on.
func TestTurnsEnd(t *testing.T) {
	for _, kind := range turnsKinds {
		t.Run(kind.name, func(t *testing.T) {
			r, f := faultyTurns(t, asIs)
			a, b := r.connectHost(3), r.connectOther()
			r.ok(a.io[0], rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
			f.Hold(nil)
			var all [3][]*fabrictest.Command
			for i, q := range a.io {
				for range 64 {
					all[i] = append(all[i], r.send(q, kind.make(1)))
				}
			}
			r.w.Settle()

			// Another namespace of the host, and another host.
			r.ok(a.io[0], kind.make(2))
			r.ok(b.io[0], kind.make(2))

			last := all[1][63] // a queue before fills the device
			r.abortAndHangUp(a, 2, last, 2)
			r.w.Advance(5 * time.Minute) // the time limit of zeroes is ten times that of the device
			for i, list := range all[:2] {
				for j, c := range list {
					if st := c.CQE.Status(); !c.Done || st.OK() {
						t.Fatalf("queue %d, command %d: done %v, %v", i, j, c.Done, st)
					}
				}
			}
			f.Release()
			r.w.Advance(time.Second)
			r.ok(a.io[0], kind.make(1)) // the namespace is ready again
			testutil.True(t, r.raw[0].compounds.Idle(), "compounds are left")

			// The host leaves with a full device, and comes back.
			f.Hold(nil)
			for range 64 {
				r.send(a.io[0], kind.make(1))
			}
			r.w.Settle()
			a.hangUp()
			r.w.Settle()
			f.Release()
			r.w.Settle()
			again := r.connectHost(1)
			r.ok(again.io[0], kind.make(1))
			testutil.True(t, r.raw[0].compounds.Idle(), "compounds are left")
		})
	}
}

// TestTurnsOfPairs: a pair of another host waits for one pair of each host, not for all that have
// come before, and pairs of a host are carried out in their order.
func TestTurnsOfPairs(t *testing.T) {
	r, a := joined(t, 2, 4, ramSubsystem(t, 1))
	b := r.connectOther()
	zero := fill(0, 512)
	var order []int
	for i := range 30 {
		for _, q := range a.io {
			r.must(q.Send(pairOf(uint64(i), zero, zero)...))
		}
	}
	for i := range 10 {
		p := pairOf(uint64(i), zero, zero)
		p[1].Then = func() { order = append(order, i) }
		r.must(a.io[0].Send(p...))
	}
	r.until("the first lock is set", func() bool {
		return slices.ContainsFunc(r.raw, func(h *Handler) bool {
			return len(h.channels) > 0 && h.channels[0].State().Busy.Locks > 0
		})
	})
	p := pairOf(100, zero, zero)
	r.must(b.io[0].Send(p...))
	before := 0
	for _, q := range a.io {
		before += q.Outstanding()
	}
	r.until("the other pair is carried out", func() bool { return p[1].Done })
	after := 0
	for _, q := range a.io {
		after += q.Outstanding()
	}
	testutil.True(t, before >= 100 && before-after <= 3*2,
		"%d commands of the host before, %d after a pair of another one", before, after)
	r.w.Settle()
	testutil.True(t, len(order) == 10 && slices.IsSorted(order), "order %v", order)
}

// slowLoop is a loop with a clock that moves without timers.
type slowLoop struct {
	fabric.Loop
	more int64
}

func (l *slowLoop) Now() int64 { return l.Loop.Now() + l.more }

// TestTurnsTakeTime: commands that wait for their turn, and chunks that were read and wait for
// theirs, are with no device, so that they do not time out.
func TestTurnsTakeTime(t *testing.T) {
	r, f := faultyTurns(t)
	q := r.connectHost(1).io[0]
	r.ok(q, rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
	f.Hold(nil)
	var all []*fabrictest.Command
	for range 10 { // the device gets a chunk of each of the first ones
		all = append(all, r.send(q, turnsKinds[0].make(1)))
	}
	r.w.Settle()
	h := r.raw[0]
	loop := &slowLoop{Loop: h.loop}
	h.loop = loop
	f.Release()
	r.w.Step()
	testutil.MustTrue(t, h.compounds.Ready() && f.Held() <= 0, "nothing waits for its turn")
	loop.more = int64(time.Minute)
	h.stopTimeouts()
	h.checkTimeouts()
	h.run()
	for _, c := range all {
		r.until("a command completes", func() bool { return c.Done })
		st := c.CQE.Status()
		testutil.True(t, st.OK(), "%v", st)
	}
}

// TestRefusedInTurns: of a command that is preempted while it waits for its turn, and devices have
// a part of it, nothing more begins.
func TestRefusedInTurns(t *testing.T) {
	for _, kind := range turnsKinds {
		if kind.name == "compare" {
			continue // it has one piece
		}
		t.Run(kind.name, func(t *testing.T) {
			var d counter
			r, f := countedTurns(t, &d)
			q := r.connectHost(1).io[0]
			r.ok(q, rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
			f.Hold(nil)
			d.take()
			c := r.send(q, kind.make(1))
			r.w.Step()
			n, _ := d.take()
			testutil.MustTrue(t, n != 0 && r.raw[0].compounds.Ready(), "the device has %d", n)
			aborted := reservation.Host{HostID: testHostID, NQN: testHost}
			r.raw[0].channels[0].ns.Adopt(nil, map[reservation.Host]bool{aborted: true},
				&reservation.Change{Done: func(nvme.Status) {}})
			r.w.Settle()
			n, _ = d.take()
			testutil.True(t, n == 0, "%d pieces begin", n)
			f.Release()
			r.w.Settle()
			r.allDone([]*fabrictest.Command{c}, nvme.AbortedPreempt)
		})
	}
}

// TestTimeoutsOfOthers: when commands of a host are given up, others go on. These do not keep
// commands of another host from being given up in the same look.
func TestTimeoutsOfOthers(t *testing.T) {
	r, f := faultyTurns(t, asIs)
	b, a := r.connectOther(), r.connectHost(4)
	for nsid := range uint32(2) { // opens the channels
		r.ok(a.io[0], rw(nvme.NVMVerify, nsid+1, 0, 1, nil))
	}
	f.Hold(nil)
	defer f.Release()
	read := rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))
	b.io[0].NoZeroCopy = true
	r.send(b.io[0], read)
	var last *fabrictest.Command
	for i, q := range a.io {
		for range 100 {
			r.send(q, rw(nvme.NVMVerify, 1, 0, 1, nil))
		}
		if i == len(a.io)-1 {
			last = r.send(q, rw(nvme.NVMVerify, 2, 0, 1, nil))
		}
	}
	r.w.Settle()
	testutil.MustTrue(t, !last.Done && !read.Done, "it was not postponed, or the read is done")
	for !last.Done {
		r.w.Advance(time.Duration(timeoutInterval))
	}
	testutil.True(t, read.Done, "the command of the other host is not given up")
}

// TestPostponedEnd: commands of a host at a device that hangs keep its other commands from being
// executed until they are given up, and no longer.
func TestPostponedEnd(t *testing.T) {
	r, f := faultyTurns(t, asIs)
	a := r.connectHost(5)
	h := r.raw[0]
	for nsid := range uint32(2) { // opens the channels
		r.ok(a.io[0], rw(nvme.NVMVerify, nsid+1, 0, 1, nil))
	}
	f.Hold(nil)
	defer f.Release()
	var all []*fabrictest.Command
	for _, q := range a.io {
		for i := range 100 {
			nsid := uint32(1)
			if i >= 80 {
				nsid = 2
			}
			all = append(all, r.send(q, rw(nvme.NVMVerify, nsid, 0, 1, nil)))
		}
	}
	r.w.Settle()
	testutil.MustTrue(t, a.io[4].Outstanding() != 0, "nothing is postponed")
	r.w.Advance(time.Minute)
	for i, c := range all {
		st := c.CQE.Status()
		testutil.MustTrue(t, (c.SQE.NSID() != 2 || st.OK()) && (c.SQE.NSID() != 1 || !st.OK()) &&
			c.Done, "command %d for namespace %d: done %v, %v", i, c.SQE.NSID(), c.Done, st)
	}
	f.Release()
	r.w.Advance(time.Second)
	r.ok(a.io[0], rw(nvme.NVMVerify, 1, 0, 1, nil))
	testutil.True(t, h.compounds.Idle(), "compounds are left")
}

// abortAndHangUp aborts command c of queue sqid of a host, which the device does not have. Then it
// closes I/O queue i, and checks that all commands of that queue end.
func (r *harness) abortAndHangUp(h *host, sqid uint16, c *fabrictest.Command, i int) {
	r.t.Helper()
	r.ok(h.admin, abortCommand(sqid, c.SQE.CID()))
	if st := c.CQE.Status().Code(); !c.Done || st != nvme.AbortRequested {
		r.t.Errorf("the command is done: %v, with %v", c.Done, st)
	}
	h.io[i].HangUp()
	r.w.Settle()
	if n := h.io[i].Outstanding(); n > 0 {
		r.t.Errorf("%d commands of a queue that has ended are outstanding", n)
	}
}

// slowDisk carries out the IOs of its namespaces one after the other, a few bytes in each poll. A
// piece to be deallocated takes as long as a chunk.
type slowDisk struct {
	line   []*lineIO
	served int64 // bytes
}

type lineIO struct {
	*backend.IO
	ch   *slowChannel
	left int64
}

type slowDevice struct {
	backend.Device
	disk *slowDisk
}

func (d *slowDevice) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	ch, err := d.Device.OpenChannel(r)
	return &slowChannel{ch, d.disk}, err
}

type slowChannel struct {
	backend.Channel
	disk *slowDisk
}

func (c *slowChannel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		left := io.Len
		if io.Op == backend.OpDiscard {
			left = min(left, compound.Chunk)
		}
		c.disk.line = append(c.disk.line, &lineIO{io, c, left})
	}
	return len(ios)
}

func (c *slowChannel) Poll(done []*backend.IO) int {
	if d := c.disk; len(d.line) > 0 {
		first := d.line[0]
		n := min(first.left, 16<<10)
		d.served += n
		if first.left -= n; first.left == 0 {
			d.line = d.line[1:]
			first.ch.Channel.Submit([]*backend.IO{first.IO})
		}
	}
	return c.Channel.Poll(done)
}

func (c *slowChannel) Arm() bool { return len(c.disk.line) == 0 && c.Channel.Arm() }

// waits are the bytes that a disk serves between the arrival of a neighbor's reads and their end.
type waits struct{ most, sum int64 }

// besideKinds are the culprits of TestBeside, with their number of commands. The first row is for
// comparison: as many bytes of reads as a host may have at a device for long commands.
func besideKinds() (kinds []besideKind) {
	kinds = append(kinds, besideKind{
		"reads", int(flowWork / compound.Chunk),
		func(nsid uint32) *fabrictest.Command {
			data := make([]byte, compound.Chunk)
			return rw(nvme.NVMRead, nsid, 0, uint32(compound.Chunk/512), data)
		},
	})
	for _, k := range turnsKinds {
		kinds = append(kinds, besideKind{k.name, 100, k.make})
	}
	return append(kinds, besideKind{"self-test", 1, nil})
}

type besideKind struct {
	name     string
	commands int
	make     func(nsid uint32) *fabrictest.Command // nil: a self-test
}

// TestBeside: beside 100 commands that make the target work, a neighbor's read waits for at most
// twice as many bytes as beside reads, of the disk that both use.
func TestBeside(t *testing.T) {
	t.Parallel() // it computes
	kinds := besideKinds()
	reads := beside(t, kinds[0])
	for _, k := range kinds[1:] {
		t.Run(k.name, func(t *testing.T) {
			w := beside(t, k)
			t.Logf("a read waits for %d KiB at most, %d KiB in sum", w.most>>10, w.sum>>10)
			testutil.True(t, w.most <= 2*reads.most && w.sum <= 2*reads.sum,
				"%+v, beside reads %+v", w, reads)
		})
	}
}

func beside(t *testing.T, k besideKind) (w waits) {
	disk := new(slowDisk)
	wrap := func(dev backend.Device) backend.Device { return &slowDevice{dev, disk} }
	r := newHarness(t, 1, turnsSubsystem(t, wrap, wrap))
	culprit, neighbor := r.connectHost(1), r.connectOther()
	read := func() *fabrictest.Command {
		c := rw(nvme.NVMRead, 2, 8, 8, make([]byte, 4096))
		return r.send(neighbor.io[0], c)
	}
	neighbor.io[0].NoZeroCopy, culprit.io[0].NoZeroCopy = true, true
	r.ok(culprit.io[0], command(nvme.NVMFlush, 1, nil)) // opens the channels
	r.ok(neighbor.io[0], command(nvme.NVMFlush, 2, nil))
	begun := disk.served
	again := true
	for range k.commands {
		if k.make == nil {
			c := command(nvme.AdminSelfTest, 1, nil)
			c.SQE.SetCDW(10, uint32(nvme.SelfTestExtended))
			r.ok(culprit.admin, c)
			break
		}
		c := k.make(1)
		c.Then = func() {
			testutil.MustTrue(t, c.CQE.Status().OK(), "%v", c.CQE.Status())
			if c.Reset(); again {
				r.send(culprit.io[0], c)
			}
		}
		r.send(culprit.io[0], c)
	}
	for i := range 32 {
		for range 20 + i {
			r.w.Step()
			r.w.Tick(20 * time.Microsecond)
		}
		before := disk.served
		c := read()
		for !c.Done {
			r.w.Step()
		}
		n := disk.served - before - 4096
		w.most, w.sum = max(w.most, n), w.sum+n
	}
	again = false
	testutil.True(t, disk.served-begun > 1<<20, "the culprit has got %d bytes", disk.served-begun)
	culprit.hangUp()
	r.w.Settle()
	return w
}

// TestReadBesideDiscard: a read goes on before a discard of the same RAM is over.
func TestReadBesideDiscard(t *testing.T) {
	r := newHarness(t, 1, turnsSubsystem(t, func(d backend.Device) backend.Device { return d }))
	q := r.connectHost(1).io[0]
	q.NoZeroCopy = true
	data := make([]byte, 1<<20)
	for lba := uint64(0); lba < turnsSize/512; lba += 2048 {
		r.ok(q, rw(nvme.NVMWrite, 1, lba, 2048, data))
	}
	discard := r.send(q, dsm(1, true, [2]uint64{0, turnsSize / 512}))
	for range 10 {
		r.w.Step()
	}
	r.ok(q, rw(nvme.NVMRead, 1, 0, 128, data[:64<<10]))
	testutil.True(t, !discard.Done, "the read has waited for the discard")
	r.until("the discard ends", func() bool { return discard.Done })
}

// TestAdmitsInTurns: of very many commands that may go on at once few do in each poll, of all
// namespaces in turns, so that other hosts wait for few of them.
func TestAdmitsInTurns(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 2))
	r.target.SetHostLimits(testHost, qos.Limits{IOPS: 1})
	hosts := r.connectHost(4)
	var all []*fabrictest.Command
	for i := range 100 {
		c := rw(nvme.NVMRead, uint32(i%2+1), 0, 8, make([]byte, 4096))
		all = append(all, r.send(hosts.io[i%4], c))
	}
	r.w.Settle()
	h := r.raw[0]
	waiting := func() (n [2]int) {
		for s := range h.sessions.All() {
			for _, c := range s.cmds[:s.used] {
				if c.waits() {
					n[c.req.SQE.NSID()-1]++
				}
			}
		}
		return n
	}
	r.target.SetHostLimits(testHost, qos.Limits{})
	h.relink()
	before, polls := waiting(), 0
	if n := before[0] + before[1]; n != len(all)-1-qos.AdmitMost || h.Arm() {
		t.Errorf("%d wait after the first turn, and the reactor may sleep: %v", n, h.Arm())
	}
	for ; h.gate.Ready(); polls++ {
		h.Poll(64)
		now := waiting()
		n := before[0] - now[0] + before[1] - now[1]
		testutil.True(t, n <= qos.AdmitMost, "%d commands in one poll", n)
		testutil.True(t, polls != 0 || (now[0] == before[0]) != (now[1] == before[1]),
			"not in turns: %v, before %v", now, before)
		before = now
	}
	testutil.True(t, polls == 3 && before == [2]int{}, "%v wait after %d polls", before, polls)
	r.allDone(all, nvme.Success)
}

// everyNamespaces is the number of namespaces for commands that are for all of them.
const everyNamespaces = 1500

// everySubsystem has namespaces that share a device.
func everySubsystem(t *testing.T) (subsystems.Config, *counter) {
	dev := &counter{Device: ramDevice(t, 1<<20, 512)}
	return subsystemOf(testSub, slices.Repeat([]backend.Device{dev}, everyNamespaces)...), dev
}

// TestFlushSteps: a Flush of all namespaces looks at some of them in a turn, and flushes fewer, and
// other commands are served meanwhile.
func TestFlushSteps(t *testing.T) {
	for _, flushes := range []int{everyNamespaces, 2} {
		sub, dev := everySubsystem(t)
		for i := flushes; i < len(sub.Namespaces); i++ {
			sub.Namespaces[i].Hosts = []string{otherHost}
		}
		r := newHarness(t, 1, sub)
		q := r.connectHost(2).io
		r.ok(q[0], command(nvme.NVMFlush, nvme.NSIDAll, nil)) // opens the channels
		dev.take()
		flush := r.send(q[0], command(nvme.NVMFlush, nvme.NSIDAll, nil))
		ios, steps := 0, 0
		for ; !flush.Done; steps++ {
			read := r.send(q[1], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			r.w.Step()
			n, _ := dev.take()
			testutil.MustTrue(t, n <= 2*compoundWidth+1, "%d in a turn", n)
			testutil.MustTrue(t, flush.Done || read.Done, "a read waits for the flush")
			ios += n
		}
		testutil.Equal(t, flush.CQE.Status(), nvme.Success, "flush")
		testutil.True(t, steps > 2*everyNamespaces/flushLook-1, "only %d turns", steps)
		testutil.True(t, ios == flushes+steps, "%d IOs with %d reads", ios, steps)
	}
}

// TestFlushPreempted: a Flush of all namespaces is aborted by Preempt and Abort in a namespace that
// it has not come to, also if its host keeps access, and not in one that it has flushed. It is
// aborted as well if its host has lost access to a namespace since it was checked.
func TestFlushPreempted(t *testing.T) {
	const last = uint32(2 * compoundWidth)
	for _, kind := range []string{"to come", "done", "postponed", "no access"} {
		dev := faultyDevice(t, 1<<20, 512)
		list := slices.Repeat([]backend.Device{dev}, int(last))
		at := &recorder{Device: ramDevice(t, 1<<20, 512), info: func(*backend.Info) {}}
		nsid, reactors := last, 2
		switch kind {
		case "done":
			nsid = 1
		case "postponed":
			reactors = 1 // of all its commands
		}
		list[nsid-1] = at
		r := newHarness(t, reactors, subsystemOf(testSub, list...))
		a, b := r.numbered(0, 1), r.numbered(1, 5)
		r.ok(a.io[0], withNSID(register(1), nsid))
		r.ok(b.io[0], withNSID(register(2), nsid))
		r.ok(b.io[0], rw(nvme.NVMRead, nsid, 0, 1, make([]byte, 512)))
		at.take()
		dev.Hold(nil)
		if kind == "postponed" {
			for i := range 2 * mostCompounds / 3 {
				r.send(b.io[i/100], rw(nvme.NVMVerify, 1, 0, 1, nil))
			}
		}
		flush := r.send(b.io[4], command(nvme.NVMFlush, nvme.NSIDAll, nil))
		r.w.Settle()
		c := withNSID(preempt(nvme.ReservationPreemptAndAbort, 1, 2, nvme.WriteExclusive), nsid)
		if kind == "no access" {
			c = withNSID(acquire(1, nvme.WriteExclusive), nsid)
		}
		r.ok(a.io[0], c)
		if kind == "postponed" {
			testutil.MustTrue(t, flush.Done, "the flush is still postponed")
		}
		dev.Release()
		want, ios := nvme.AbortedPreempt, 0
		if kind == "done" {
			want, ios = nvme.Success, 1
		}
		r.allDone([]*fabrictest.Command{flush}, want)
		testutil.Equal(t, len(at.take()), ios, "%s: flushes of the namespace", kind)
	}
}

// TestPreemptSparesAdmin: Preempt and Abort leaves the IOs of admin queues alone. They are the
// target's own.
func TestPreemptSparesAdmin(t *testing.T) {
	sub, dev := faultySubsystem(t)
	dev.HonorCancel()
	r := protectHarness(t, newProtectionStore(), sub)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], register(2))
	r.ok(b.io[0], acquire(2, nvme.WriteExclusive))
	dev.Hold(opIs(backend.OpFlush))
	protect := r.send(b.admin, protectCommand(1, nvme.WriteProtect))
	r.until("the device has the flush", func() bool { return dev.Held() == 1 })
	c := r.send(a.io[0], preempt(nvme.ReservationPreemptAndAbort, 1, 2, nvme.WriteExclusive))
	a.untilChanged(hasOneRegistrant)
	r.w.Settle()
	testutil.True(t, !protect.Done, "the flush is aborted: %v", protect.CQE.Status())
	dev.Release()
	r.allDone([]*fabrictest.Command{c, protect}, nvme.Success)
}

// TestEveryElsewhere: admin commands that look at all namespaces do so on no reactor.
func TestEveryElsewhere(t *testing.T) {
	sub, _ := everySubsystem(t)
	r := newHarness(t, 1)
	r.target.shared.Reservations = &memoryStore{}
	r.must(r.target.AddSubsystem(sub))
	h := r.connectHost(0)
	all := func(fid nvme.FID, v uint32) *fabrictest.Command {
		return withNSID(setFeature(fid, v), nvme.NSIDAll)
	}
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	for i, c := range []*fabrictest.Command{
		propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)),
		logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0),
		identifyCommand(nvme.CNSController, 0), identifyCommand(nvme.CNSActiveNamespaces, 0),
		identifyCommand(nvme.CNSAllocatedNamespaces, 0),
		all(nvme.FeatureErrorRecovery, 1), all(nvme.FeatureReservationMask, 2),
		all(nvme.FeatureReservationPersist, 1), all(nvme.FeatureKeepAliveTimer, 0),
		selfTestCommand(nvme.SelfTestExtended, nvme.NSIDAll),
	} {
		r.send(h.admin, c)
		testutil.True(t, !c.Done, "command %d is done at once", i)
		r.allDone([]*fabrictest.Command{c}, nvme.Success)
	}
	ns, err := r.target.namespace(testSub, everyNamespaces)
	r.must(err)
	testutil.Equal(t, ns.ErrorRecovery.Load(), 1, "error recovery of the last namespace")
	testutil.Equal(t, ns.Reservations.Mask.Load(), 2, "reservation mask of the last namespace")
	testutil.True(t, ns.Reservations.State().PTPL, "persistence of the last namespace")
}
