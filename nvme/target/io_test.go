package target

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
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

// TestTransportErrors: an error that the transport finds becomes the status of the command, and the
// device does not see it.
func TestTransportErrors(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	q := r.connectHost(1).io[0]
	dev.Fail(func(*backend.IO) error {
		t.Error("the device got a command")
		return backend.ErrIO
	})
	c := rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))
	c.Malformed = nvme.SGLTypeInvalid | nvme.DNR
	r.status(q, c, nvme.SGLTypeInvalid|nvme.DNR)
	c = rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))
	c.Broken = nvme.TransientTransportError
	r.status(q, c, nvme.TransientTransportError)
	c = rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))
	c.Lost = true
	r.send(q, c)
	testutil.True(t, q.Outstanding() == 0 && !c.Done, "an abandoned command is outstanding or done")
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

// TestFusedNamespaceGoes: a pair that waits for its lock ends when its namespace is removed, and
// goes on when the device of the namespace is exchanged.
func TestFusedNamespaceGoes(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r, h := joined(t, 3, 2, sub)
	zero, one := fill(0, 512), fill(1, 512)
	begin := func(old, data []byte) (early *fabrictest.Command, p []*fabrictest.Command) {
		dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
		early = r.send(h.io[1], rw(nvme.NVMWrite, 1, 8, 1, old))
		r.until("the device has a write", func() bool { return dev.Held() == 1 })
		p = pairOf(8, old, data)
		r.must(h.io[0].Send(p...))
		r.w.Settle()
		return early, p
	}
	for _, q := range h.io { // opens the channels
		r.ok(q, rw(nvme.NVMWrite, 1, 8, 1, zero))
	}
	_, p := begin(zero, one)
	x := r.startExchange(sub.Namespaces[0])
	dev.Release()
	r.until("the device has nothing", func() bool { return len(x.old) > 0 })
	r.must(x.end(<-x.old, nil))
	r.until("the pair completes", func() bool { return p[1].Done })
	if a, b := p[0].CQE.Status(), p[1].CQE.Status(); !a.OK() || !b.OK() {
		t.Errorf("with an exchange of the device: %v, %v", a, b)
	}
	early, p := begin(one, zero)
	_, err := r.target.RemoveNamespace(testSub, 1)
	r.must(err)
	dev.Release()
	for _, c := range append(p, early) {
		r.until("all complete", func() bool { return c.Done })
	}
	testutil.Equal(t, early.CQE.Status(), nvme.Success, "a write before the removal")
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
