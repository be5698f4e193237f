package target

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// dsm makes a Dataset Management command with a buffer of 4096 bytes, as Linux does.
func dsm(nsid uint32, deallocate bool, ranges ...[2]uint64) *fabrictest.Command {
	c := command(nvme.NVMDatasetManagement, nsid, make([]byte, 4096))
	c.SQE.DSM().Set(len(ranges), deallocate)
	for i, x := range ranges {
		(*nvme.DSMRange)(c.Data[16*i:]).Set(x[0], uint32(x[1]))
	}
	return c
}

// recorder records the IOs that a device gets.
type recorder struct {
	backend.Device
	mu   sync.Mutex
	ios  []backend.IO
	info func(*backend.Info)
}

func (d *recorder) Info() backend.Info {
	i := d.Device.Info()
	d.info(&i)
	return i
}

func (d *recorder) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	ch, err := d.Device.OpenChannel(r)
	return &recordedChannel{ch, d}, err
}

type recordedChannel struct {
	backend.Channel
	d *recorder
}

func (c *recordedChannel) Submit(ios []*backend.IO) int {
	c.d.mu.Lock()
	for _, io := range ios {
		c.d.ios = append(c.d.ios, backend.IO{Op: io.Op, Flags: io.Flags, Off: io.Off, Len: io.Len})
	}
	c.d.mu.Unlock()
	return c.Channel.Submit(ios)
}

func (d *recorder) take() []backend.IO {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.ios
	d.ios = nil
	return l
}

// TestBackends writes and verifies at random on every backend.
func TestBackends(t *testing.T) {
	const size, most = 1 << 20, 128 << 10
	open := map[string]func(t *testing.T, bs int) backend.Device{
		"ram": func(t *testing.T, bs int) backend.Device { return ramDevice(t, size, bs) },
		"file": func(t *testing.T, bs int) backend.Device {
			d, err := file.Open(file.Config{Path: t.TempDir() + "/disk", Size: size, BlockSize: bs})
			testutil.Must(t, err)
			closeLast(t, d)
			return d
		},
		"null": func(t *testing.T, bs int) backend.Device {
			d := testutil.Value(null.Open(null.Config{Size: size, BlockSize: bs}))(t)
			closeLast(t, d)
			return d
		},
	}
	for name, f := range open {
		for _, bs := range []int{512, 4096} {
			t.Run(fmt.Sprintf("%s %d", name, bs), func(t *testing.T) {
				sub := subsystems.Config{
					NQN: testSub, AllowAnyHost: true,
					Namespaces: []namespaces.Config{{NSID: 1, Device: f(t, bs)}},
				}
				r := newHarness(t, 2, sub)
				q := r.connectHost(1).io[0]
				model := make([]byte, size)
				rnd := rand.New(rand.NewPCG(1, uint64(bs)))
				for range 40 {
					n := 1 + rnd.IntN(most/bs)
					at := rnd.IntN(size/bs - n + 1)
					part := model[at*bs : (at+n)*bs]
					switch rnd.IntN(4) {
					case 0, 1:
						if name != "null" {
							v := rnd.Uint64()
							for i := 0; i < len(part); i += 512 {
								binary.LittleEndian.PutUint64(part[i:], v+uint64(i))
							}
						}
						r.ok(q, rw(nvme.NVMWrite, 1, uint64(at), uint32(n), bytes.Clone(part)))
					case 2:
						clear(part)
						r.ok(q, rw(nvme.NVMWriteZeroes, 1, uint64(at), uint32(n), nil))
					}
					if got := r.ok(q,
						rw(nvme.NVMRead, 1, uint64(at), uint32(n),
							make([]byte, n*bs))); !bytes.Equal(got.Data, part) {
						t.Fatalf("blocks %d+%d differ", at, n)
					}
				}
				r.ok(q, command(nvme.NVMFlush, 1, nil))
			})
		}
	}
}

// TestCompletionsAreClean: DW0 and DW1 of a completion are zero unless the command has a result.
// Reserved fields are always zero. The last completion in the same memory has no effect
// (CVE-2024-41079).
func TestCompletionsAreClean(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	fabrics := func(typ int) *fabrictest.Command {
		c := command(nvme.FabricsOpcode, 0, nil)
		c.SQE[4] = byte(typ)
		return c
	}
	check := func(q *fabrictest.Queue, what string, c *fabrictest.Command, result uint64) {
		t.Helper()
		if q == h.admin {
			r.ok(q, propertyGetCommand(nvme.PropertyCAP)) // eight bytes in the same place
		}
		r.do(q, c)
		if got := c.CQE.Result(); got != result || c.CQE.ReservedSet() {
			t.Errorf("%s: completion % x, want the result %#x and zeroes in reserved fields",
				what, c.CQE, result)
		}
	}
	for op := range 256 {
		switch nvme.Opcode(op) {
		case nvme.FabricsOpcode, nvme.AdminAbort, nvme.AdminAsyncEventReq:
			continue
		}
		check(h.admin, fmt.Sprintf("admin opcode %02Xh", op), command(nvme.Opcode(op), 7, nil), 0)
		check(h.io[0], fmt.Sprintf("I/O opcode %02Xh", op), command(nvme.Opcode(op), 7, nil), 0)
	}
	for typ := range 256 {
		check(h.admin, fmt.Sprintf("Fabrics type %02Xh", typ), fabrics(typ), 0)
		if nvme.FabricsType(typ) != nvme.FabricsDisconnect {
			check(h.io[0], fmt.Sprintf("Fabrics type %02Xh on an I/O queue", typ), fabrics(typ), 0)
		}
	}
	check(h.admin, "a property of 4 bytes", propertyGetCommand(nvme.PropertyVS),
		uint64(nvme.Version20))
	check(h.admin, "Property Set", propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)), 0)
	check(h.admin, "Identify", identifyCommand(nvme.CNSController, 0), 0)
	check(h.admin, "Get Log Page", logCommand(nvme.LogSMART, 512, 0), 0)
	check(h.admin, "Set Features", setFeature(nvme.FeatureWriteAtomicity, 1), 0)
	check(h.admin, "Get Features",
		getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureCapabilities, 0), 4)
	check(h.admin, "Get Features with data",
		getFeatureInto(nvme.FeatureHostIdentifier, 1, make([]byte, 16)), 0)
	check(h.io[0], "Write", rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)), 0)
	check(h.io[0], "Read", rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), 0)
	check(h.io[0], "Flush", command(nvme.NVMFlush, 1, nil), 0)
	check(h.io[0], "Dataset Management", dsm(1, true, [2]uint64{0, 1}), 0)
}

// source is a source range of a Copy: nsid is 0 in format 0.
type source struct {
	nsid   uint32
	slba   uint64
	blocks uint32
}

// copyTo makes a Copy command to namespace 1.
func copyTo(sdlba uint64, format nvme.CopyFormat, from ...source) *fabrictest.Command {
	c := command(nvme.NVMCopy, 1, make([]byte, len(from)*nvme.CopyRangeSize))
	c.SQE.Copy().Set(sdlba, len(from), format, 0)
	for i, s := range from {
		(*nvme.CopyRange)(c.Data[i*nvme.CopyRangeSize:]).Set(s.nsid, s.slba, s.blocks)
	}
	return c
}

// enableCopy sets the CDFE bits of the host.
func (r *harness) enableCopy(h *host) {
	c := setFeature(nvme.FeatureHostBehavior, 0)
	c.Data = make([]byte, nvme.HostBehaviorSize)
	c.Data[nvme.HostBehaviorCDFE] = byte(nvme.CopyNamespaces.Bit())
	r.ok(h.admin, c)
}

// copySubsystem has namespaces 1 and 2 of 4 MiB with blocks of 512 bytes, 3 with blocks of 4096,
// and 4 that is write protected.
func copySubsystem(t *testing.T) subsystems.Config {
	sub := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	for i, bs := range []int{512, 512, 4096, 512} {
		sub.Namespaces = append(sub.Namespaces, namespaces.Config{
			NSID: uint32(i + 1), Device: ramDevice(t, 4<<20, bs), ReadOnly: i == 3,
		})
	}
	return sub
}

// TestMoveMemory: commands that find no memory wait for it, end when they are aborted, and go on
// when there is some.
func TestMoveMemory(t *testing.T) {
	r, h := joined(t, 2, 1, ramSubsystem(t, 1))
	q, pool := h.io[0], r.w.Reactors[1].Memory()
	r.ok(q, rw(nvme.NVMVerify, 1, 0, 1, nil))
	free := r.exhaust(pool)
	first, second := rw(nvme.NVMVerify, 1, 0, 2048, nil), rw(nvme.NVMVerify, 1, 0, 2048, nil)
	r.send(q, first)
	r.send(q, second)
	r.w.Settle()
	testutil.MustTrue(t, !first.Done && pool.HasWaiters(), "without memory: done %v", first.Done)
	r.ok(h.admin, abortCommand(1, first.SQE.CID()))
	testutil.Equal(t, first.CQE.Status().Code(), nvme.AbortRequested, "aborted")
	free()
	pool.Serve()
	r.until("the other goes on", func() bool { return second.Done })
	testutil.Equal(t, second.CQE.Status(), nvme.Success, "")
	free = r.exhaust(pool)
	second.Reset()
	r.send(q, second)
	r.w.Settle()
	for next := pool.Expire(1 << 62); next() > 0; {
	}
	r.until("the wait is over", func() bool { return second.Done })
	testutil.Equal(t, second.CQE.Status().Code(), nvme.CommandInterrupted, "after the wait")
	free()
}

// exhaust takes all memory of a pool until free.
func (r *harness) exhaust(pool *mem.Pool) (free func()) {
	var a mem.Allocation
	testutil.MustTrue(r.t, pool.Alloc(&a, nil, pool.Available()), "the memory is not free")
	return a.Free
}

// fused makes a half of a fused pair: FUSE is 1 or 2.
func fused(op nvme.Opcode, fuse uint8, slba uint64, data []byte) *fabrictest.Command {
	c := rw(op, 1, slba, max(1, uint32(len(data)/512)), data)
	c.SQE.SetFlags(psdtSGL<<6 | fuse)
	return c
}

// pairOf makes a fused Compare and Write.
func pairOf(slba uint64, old, data []byte) []*fabrictest.Command {
	return []*fabrictest.Command{
		fused(nvme.NVMCompare, 1, slba, old), fused(nvme.NVMWrite, 2, slba, data),
	}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

func abortCommand(sqid, cid uint16) *fabrictest.Command {
	c := command(nvme.AdminAbort, 0, nil)
	c.SQE.Abort().Set(sqid, cid)
	return c
}

// capsuleWrite returns a queue, its device, and a function that prepares a write of 4 KiB. The
// in-capsule data lies in memory of the queue.
func capsuleWrite(t *testing.T) (b *bare, dev *backendtest.Faulty, prepare func() *fabric.Request) {
	dev = backendtest.NewFaulty(ramDeviceOpen(t, 1<<20, 512))
	closeLast(t, dev)
	b = newBare(t, namespaces.Config{NSID: 1, Device: dev, Timeout: time.Second}, 32)
	b.h.memory = b.w.Reactors[0].Memory()
	return b, dev, func() *fabric.Request {
		r := b.reqs[0]
		r.Reset()
		r.SQE = rw(nvme.NVMWrite, 1, 0, 8, nil).SQE
		r.HostLength, r.InCapsule = 4096, true
		b.h.Prepare([]*fabric.Request{r})
		r.Segs = append(r.Segs, mem.Segment{B: make([]byte, 4096)})
		return r
	}
}

// TestAbortFreesCapsule: the copy of in-capsule data is freed when its command is aborted before
// the device has it.
func TestAbortFreesCapsule(t *testing.T) {
	b, dev, prepare := capsuleWrite(t)
	free := b.h.memory.Available()
	dev.Full(true)
	r := prepare()
	b.h.Execute([]*fabric.Request{r})
	testutil.MustTrue(t, b.h.memory.Available() == free-4096, "%d bytes are copied",
		free-b.h.memory.Available())
	testutil.True(t, b.io.(*session).abort(r.SQE.CID()) && r.CQE.Status() == nvme.AbortRequested,
		"not aborted: %v", r.CQE.Status())
	dev.Full(false)
	n := b.h.memory.Available()
	testutil.True(t, n == free, "%d bytes have not come back", free-n)
}

// TestRefusedSubmitFreesCapsule: the copy is also freed if the namespace was removed while the data
// moved.
func TestRefusedSubmitFreesCapsule(t *testing.T) {
	b, _, prepare := capsuleWrite(t)
	free := b.h.memory.Available()
	r := prepare()
	gone, err := b.h.t.RemoveNamespace(testSub, 1)
	testutil.MustTrue(t, err == nil && untilGone(b.w, gone) == nil, "the namespace is not removed")
	b.h.Execute([]*fabric.Request{r})
	testutil.Equal(t, r.CQE.Status()&^nvme.More, inactiveNamespace, "")
	n := b.h.memory.Available()
	testutil.True(t, n == free, "%d bytes have not come back", free-n)
}

// prepareReads prepares a read of block 8i on each of the first n requests.
func (b *bare) prepareReads(n int) []*fabric.Request {
	for i, r := range b.reqs[:n] {
		r.Reset()
		r.SQE = rw(nvme.NVMRead, 1, uint64(i*8), 8, nil).SQE
		r.HostLength = 4096
	}
	b.h.Prepare(b.reqs[:n])
	return b.reqs[:n]
}

// TestZeroCopyReadsEnd: a namespace is not removed, and its device not closed, before the last
// zero-copy read has ended, for any outcome of the command.
func TestZeroCopyReadsEnd(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	reqs := b.prepareReads(3)
	for i, r := range reqs {
		if !r.ZeroCopy || r.Dir != fabric.ControllerToHost || mem.Length(r.Segs) != 4096 {
			t.Fatalf("request %d: zero copy %v, %d bytes", i, r.ZeroCopy, mem.Length(r.Segs))
		}
	}
	b.h.Execute(reqs[:2])
	if b.q.done != 6 || b.q.bad != 0 { // 4 commands went before
		t.Fatalf("%d commands are done, %d bad", b.q.done, b.q.bad)
	}
	if got := b.h.t.find(testSub).Namespaces.Load().Get(1).Total(); got[backend.OpRead] != 2 ||
		got[dispatch.Sectors] != 16 {
		t.Errorf("%d reads of %d sectors are counted", got[backend.OpRead], got[dispatch.Sectors])
	}
	gone := testutil.Value(b.h.t.RemoveNamespace(testSub, 1))(t)
	testutil.Must(t, b.w.Until(func() bool { return b.h.channels[0].State().Closing }))
	testutil.True(t, !b.h.WriterWaits(reqs[0]), "a writer waits, although there is none")
	b.h.EndZeroCopy(reqs[0])
	b.h.Close(b.io) // the queue ends with an executed and a prepared read
	b.h.Abandon(reqs[2])
	b.h.EndZeroCopy(reqs[1])
	b.w.Settle()
	testutil.MustTrue(t, !closed(gone), "the namespace is removed during a zero-copy read")
	b.h.EndZeroCopy(reqs[2])
	testutil.Must(t, untilGone(b.w, gone))
}

// TestNoZeroCopyRead: memory that the queue cannot send from is not attached.
func TestNoZeroCopyRead(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	b.q.noZeroCopy = true
	for _, r := range b.prepareReads(2) {
		testutil.True(t, !r.ZeroCopy && len(r.Segs) == 0 && r.Length == 4096,
			"zero copy %v, %d segments, %d bytes", r.ZeroCopy, len(r.Segs), r.Length)
		b.h.Abandon(r)
	}
	testutil.Equal(t, b.h.channels[0].State().Busy.ZeroCopies, 0, "zero-copy reads have not ended")
}

// prepareWrites prepares a write of 64 KiB at each multiple of that on the first n requests.
func (b *bare) prepareWrites(n int, inCapsule bool) []*fabric.Request {
	for i, r := range b.reqs[:n] {
		r.Reset()
		r.SQE = rw(nvme.NVMWrite, 1, uint64(i*128), 128, nil).SQE
		r.HostLength, r.InCapsule = 64<<10, inCapsule
	}
	b.h.Prepare(b.reqs[:n])
	return b.reqs[:n]
}

// firstBytes returns the first byte of each of the first n ranges of prepareWrites.
func (b *bare) firstBytes(n int) []byte {
	ch := b.h.channels[0]
	var first []byte
	for i := range n {
		io := &backend.IO{Op: backend.OpRead, Off: int64(i) << 16, Len: 64 << 10}
		segs, ok := ch.StartZeroCopy(io, nil)
		if !ok {
			b.q.bad++
			break
		}
		first = append(first, segs[0].B[0])
		ch.EndZeroCopy(io, segs)
	}
	return first
}

// TestZeroCopyWritesEnd: the memory of a write goes back to the device, for any outcome of the
// command. Only data of executed commands is written. The namespace waits for all of them.
func TestZeroCopyWritesEnd(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	reqs := b.prepareWrites(5, false)
	for i, r := range reqs {
		if !r.ZeroCopy || r.Dir != fabric.HostToController || mem.Length(r.Segs) != 64<<10 {
			t.Fatalf("request %d: zero copy %v, %d bytes", i, r.ZeroCopy, mem.Length(r.Segs))
		}
		for _, s := range r.Segs {
			for j := range s.B {
				s.B[j] = byte(i + 1)
			}
		}
	}
	done := b.q.done
	reqs[1].Status = nvme.TransientTransportError // a digest was wrong
	b.h.Execute(reqs[:2])
	testutil.MustTrue(t, b.q.done == done+2 && b.q.bad == 1, "%d commands are done, %d bad",
		b.q.done-done, b.q.bad)
	b.h.EndZeroCopy(reqs[0])
	b.h.EndZeroCopy(reqs[1])
	b.h.Abandon(reqs[2])
	b.h.EndZeroCopy(reqs[2])
	testutil.EqualSlices(t, b.firstBytes(5), []byte{1, 0, 0, 0, 0}, "written")
	if got := b.h.t.find(testSub).Namespaces.Load().Get(1).Total(); got[backend.OpWrite] != 1 ||
		got[dispatch.Sectors+1] != 128 {
		t.Errorf("%d writes of %d sectors are counted", got[backend.OpWrite],
			got[dispatch.Sectors+1])
	}
	gone := testutil.Value(b.h.t.RemoveNamespace(testSub, 1))(t)
	testutil.Must(t, b.w.Until(func() bool { return b.h.channels[0].State().Closing }))
	b.h.Execute(reqs[3:4]) // its data came in time
	b.h.Close(b.io)
	b.h.EndZeroCopy(reqs[3])
	b.w.Settle()
	testutil.MustTrue(t, !closed(gone), "the namespace is removed during a zero-copy write")
	b.h.Abandon(reqs[4])
	b.h.EndZeroCopy(reqs[4])
	testutil.Must(t, untilGone(b.w, gone))
}

// TestNoZeroCopyWrite: no memory is attached that the queue cannot receive into, and none to writes
// with data that was already received.
func TestNoZeroCopyWrite(t *testing.T) {
	b := newBare(t, namespaces.Config{NSID: 1, Device: ramDevice(t, 64<<20, 512)}, 32)
	for _, inCapsule := range []bool{false, true} {
		b.q.noZeroCopy = !inCapsule
		for _, r := range b.prepareWrites(2, inCapsule) {
			testutil.True(t, !r.ZeroCopy && len(r.Segs) == 0 && r.Length == 64<<10,
				"in capsule %v: zero copy %v, %d segments, %d bytes", inCapsule, r.ZeroCopy,
				len(r.Segs), r.Length)
			b.h.Abandon(r)
		}
	}
	testutil.Equal(t, b.h.channels[0].State().Busy.ZeroCopies, 0, "zero-copy writes have not ended")
}
