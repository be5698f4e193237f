// Package ram implements storage in memory. It can have any size, takes memory only for written
// data, and loses the data when it is closed.
//
// A device has a table of slots, one per frame-sized piece, and frames, which are the memory.
// Frames lie in one reserved mapping, in which the kernel supplies a page when it is first written.
// A slot without a frame reads as zeroes. Discarding takes the frames out of their slots and gives
// their pages back.
//
// Several reactors use a device at the same time. No command may see a logical block that is torn
// by two racing commands (NVM Express Base Specification 1.4, section 6.4: AWUN is at least one
// block). A logical block lies in one frame. The data of a command takes one of these paths:
//
//	small write      copied in place, several of one Submit at a time (batch.go)
//	other write      copied frame by frame, in place, or into a new frame if the old one has
//	                 readers (copy.go)
//	zero-copy write  received by the transport into new frames, which then replace the old ones
//	                 (zerocopy_write.go)
//	read             copied while the slot is locked (copy.go)
//	zero-copy read   sent from the frames themselves, which do not change even if their slots get
//	                 others (zerocopy_read.go)
//
// Code that has locked a slot waits for nothing, not even for another slot. A change that needs a
// frame is blocked until there is one (blocked.go).
package ram

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Config describes a RAM device.
type Config struct {
	// Size is in bytes, a multiple of BlockSize.
	Size int64
	// BlockSize is the logical block size in bytes.
	BlockSize int
}

const (
	// chunk is the unit in which long ranges without frames are skipped, in bytes.
	chunk      = mem.ChunkSize
	chunkShift = 21
	maxSize    = 1 << 53
	// minFrame is the size of a frame in bytes, unless blocks are larger. Smaller frames cut
	// zero-copy data into more segments, larger ones let larger writes be copied.
	minFrame = 16 << 10
	// optimal is the transfer size and alignment in bytes below which nothing is gained.
	optimal = 4 << 10
	// The spare memory is a sixteenth of the size, within these bounds, in bytes.
	minSpare, maxSpare = 8 << 20, 256 << 20

	purpose      = "ram namespace"
	tablePurpose = "ram namespace tables"
)

type device struct {
	info     backend.Info
	frame    int64 // bytes of a frame
	frames   frames
	base     uint64 // address of the region
	zeroesAt int64  // see the constant; offset in the region
	slots    []slot
	// mapped counts the slots of a chunk that have frames. It is never too small.
	mapped []atomic.Int32
	tables *mem.Region
	huge   huge

	blocked backend.RetryGroup // all channels
	// readable is the number of frames for zero-copy reads, besides the parts of channels.
	readable atomic.Int64
}

// Open makes a RAM device that reads as zeroes.
func Open(cfg Config) (backend.Device, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("ram device: %w", err)
	}
	d := &device{
		info: backend.Info{
			Size: cfg.Size, BlockSize: cfg.BlockSize, PhysicalBlockSize: cfg.BlockSize,
			OptimalIO: max(cfg.BlockSize, optimal),
			Discard:   true, DiscardZeroes: true, Identity: "ram", Volatile: true,
		},
		frame:  int64(max(cfg.BlockSize, minFrame)),
		mapped: make([]atomic.Int32, (cfg.Size+chunk-1)>>chunkShift),
	}
	if err := d.reserve(); err != nil {
		return nil, fmt.Errorf("ram device: %w", err)
	}
	return d, nil
}

// reserve maps the memory and the tables. The kernel supplies a page when it is first used.
func (d *device) reserve() (err error) {
	f := &d.frames
	f.shift = uint(bits.TrailingZeros64(uint64(d.frame)))
	f.per = min(64, int64(chunk)>>f.shift)
	group := f.per << f.shift
	spare := min(max(d.info.Size/16, minSpare), maxSpare) / group * f.per
	slots := (d.info.Size + d.frame - 1) >> f.shift
	groups := (slots + f.per - 1 + spare) / f.per
	f.count, f.maxSpare = groups*f.per, spare
	f.spare.Store(spare)
	d.readable.Store(f.readLimit())
	d.zeroesAt = (groups*group + chunk - 1) &^ (chunk - 1)
	if f.region, err = mem.Map(purpose, int(d.zeroesAt+zeroes)); err != nil {
		return err
	}
	d.base = mem.Addr(f.region.Bytes())
	d.tables, err = mem.Map(tablePurpose, int(8*(slots+f.count+2*groups)))
	if err != nil {
		return errors.Join(err, f.region.Unmap())
	}
	b := d.tables.Bytes()
	cut := func(n int64) []byte {
		part := b[:8*n]
		b = b[8*n:]
		return part
	}
	d.slots = mem.View[slot](cut(slots))
	f.readers = mem.View[atomic.Int64](cut(f.count))
	f.used = mem.View[atomic.Uint64](cut(groups))
	f.dirty = mem.View[atomic.Uint64](cut(groups))
	d.initHuge()
	return nil
}

func (d *device) Info() backend.Info { return d.info }

// OpenChannel implements backend.Device. Only blocked writes and long discards outlast Submit.
func (d *device) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	return &channel{
		d: d, wake: r.Wake, turn: r.Turn, cache: newFrameCache(&d.frames),
		retry: d.blocked.Join(r.Wake),
	}, nil
}

func (d *device) Close() error {
	if n := d.blocked.Len(); n != 0 {
		return fmt.Errorf("close ram device: %d channels are open", n)
	}
	d.huge.stop()
	return errors.Join(d.frames.region.Unmap(), d.tables.Unmap())
}

type channel struct {
	d    *device
	wake func()
	turn *backend.Turn
	done list.List[backend.IO]
	// long has IOs above stepBytes. A Poll makes one step, in the turn of the reactor.
	long list.List[backend.IO]

	blocked list.List[backend.IO] // changes that wait for a frame, in order
	again   list.List[backend.IO] // to be tried again
	retry   *backend.Retry
	// The search of last continues at group searchAt. It has looked at searched groups since the
	// channel was last woken, at tried of these before blocked changes were last tried again.
	searchAt, searched, tried int64

	batch         batch
	cache         frameCache
	reads, writes int   // zero-copy reads and writes that have not ended
	readable      int64 // see budget.go
}

// longStep is the most bytes of a discard that a Poll skips, almost free without frames.
const longStep = 1024 * chunk

// stepBytes is about the most bytes that a step copies, or frees, for which the kernel needs 12 to
// 40 µs. It is half of a turn.
const stepBytes = 128 << 10

func (c *channel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		if io.Err = io.Check(c.d.info.Size); io.Err != nil {
			c.done.Push(io, &io.Node)
			continue
		}
		io.Scratch = 0
		zeroCopy := io.Flags&backend.ZeroCopy != 0
		if io.Op == backend.OpWrite && !zeroCopy && c.addToBatch(io) {
			continue
		}
		c.batch.run(&c.done)
		switch {
		case io.Op == backend.OpRead:
			c.put(io, c.d.read(io))
		case io.Op == backend.OpWrite && zeroCopy:
			c.commit(io)
			c.done.Push(io, &io.Node)
		case io.Op == backend.OpFlush:
			c.done.Push(io, &io.Node)
		case io.Op > backend.OpDiscard:
			io.Err = fmt.Errorf("ram device: %v: %w", io.Op, backend.ErrUnsupported)
			c.done.Push(io, &io.Node)
		case io.Op != backend.OpWrite && io.Len > stepBytes:
			c.long.Push(io, &io.Node)
			c.wake()
		default:
			c.change(io)
		}
	}
	c.batch.run(&c.done)
	c.trimCache()
	return len(ios)
}

func (c *channel) Poll(done []*backend.IO) int {
	c.retryBlocked()
	if !c.long.Empty() && c.turn.Take(stepBytes) {
		if io := c.long.Pop(); io.Op == backend.OpRead {
			c.put(io, c.d.read(io))
		} else {
			c.change(io)
			c.trimCache()
		}
	}
	return c.done.Fill(done)
}

func (c *channel) Arm() bool {
	return c.done.Empty() && c.long.Empty() && c.again.Empty() && !c.retry.Due() &&
		!c.searches()
}

func (c *channel) Close() error {
	if !c.done.Empty() || !c.long.Empty() || !c.blocked.Empty() || !c.again.Empty() {
		return errors.New("close channel of ram device: operations are outstanding")
	}
	if c.reads+c.writes != 0 {
		return fmt.Errorf("close channel of ram device: %d zero-copy reads and %d zero-copy "+
			"writes have not ended", c.reads, c.writes)
	}
	c.d.readable.Add(c.readable)
	c.readable = 0
	c.cache.evict(len(c.cache.runs))
	c.retry.Leave()
	c.d.blocked.Wake()
	return nil
}

var (
	_ backend.ZeroCopyReader = (*channel)(nil)
	_ backend.ZeroCopyWriter = (*channel)(nil)
)
