package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
)

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
	for i := range 64 {
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
