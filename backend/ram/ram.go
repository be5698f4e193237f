// Package ram is storage in memory: as large as it likes, sparse until written, gone when closed.
//
// A device is a table of slots, one for each piece of the size of a frame, and frames, the memory,
// which lie in one reserved mapping; the kernel supplies a page when it is first written. A slot
// without a frame reads as zeroes, and discarding takes the frames out of slots and gives their
// pages back.
//
// Several reactors use a device at the same time. A logical block must never be seen torn by two
// racing commands (NVM Express Base Specification 1.4, section 6.4: AWUN is at least one block),
// and lies in one frame. Small changes are made in place while the slot is held; large ones come in
// frames of their own, received by the transport, which then take the place of the old ones
// (reserve.go). Reads that copy nothing borrow frames, and keep what they borrowed when the slot
// gets another one (lend.go). Nothing is held across anything that waits, another slot included
// (batch.go); a change for which there is no frame is parked (wait.go).
package ram

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Config describes a RAM device.
type Config struct {
	// Size in bytes, a multiple of BlockSize.
	Size int64
	// BlockSize is the logical block size in bytes.
	BlockSize int
}

const (
	// chunk is the unit in which long ranges are passed over.
	chunk      = mem.ChunkSize
	chunkShift = 21
	maxSize    = 1 << 53
	// minFrame is the size of a frame, unless blocks are larger: less makes more segments of what
	// is lent, more lets larger writes be copied.
	minFrame = 16 << 10
	// optimal is the transfer size, or alignment, below which nothing is gained.
	optimal = 4 << 10
	// The spare memory is a sixteenth of the size, within these bounds.
	leastSpare, mostSpare = 8 << 20, 256 << 20

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
	// mapped counts the slots of a chunk that have frames: never too few.
	mapped []atomic.Int32
	tables *mem.Region
	huge   huge

	mu       sync.Mutex // held by those who change channels
	channels atomic.Pointer[[]*channel]
	waiters  atomic.Int32 // channels that wait
}

// Open makes a RAM device that reads as zeroes.
func Open(cfg Config) (backend.Device, error) {
	if err := backend.CheckGeometry(cfg.Size, cfg.BlockSize); err != nil {
		return nil, fmt.Errorf("ram device: %w", err)
	}
	if cfg.Size > maxSize {
		return nil, fmt.Errorf("ram device: size %d: must be at most %d", cfg.Size, int64(maxSize))
	}
	d := &device{
		info: backend.Info{
			Size: cfg.Size, BlockSize: cfg.BlockSize, PhysicalBlockSize: cfg.BlockSize,
			OptimalIO: max(cfg.BlockSize, optimal),
			Discard:   true, DiscardZeroes: true, Identity: "ram",
		},
		frame:  int64(max(cfg.BlockSize, minFrame)),
		mapped: make([]atomic.Int32, (cfg.Size+chunk-1)>>chunkShift),
	}
	d.channels.Store(new([]*channel))
	if err := d.reserve(); err != nil {
		return nil, fmt.Errorf("ram device: %w", err)
	}
	return d, nil
}

// reserve maps the memory and the tables, of which the kernel supplies what is used.
func (d *device) reserve() (err error) {
	f := &d.frames
	f.shift = uint(bits.TrailingZeros64(uint64(d.frame)))
	f.per = min(64, int64(chunk)>>f.shift)
	group := f.per << f.shift
	spare := min(max(d.info.Size/16, leastSpare), mostSpare) / group * f.per
	slots := (d.info.Size + d.frame - 1) >> f.shift
	groups := (slots + f.per - 1 + spare) / f.per
	f.count, f.most = groups*f.per, spare
	f.spare.Store(spare)
	d.zeroesAt = (groups*group + chunk - 1) &^ (chunk - 1)
	if f.region, err = mem.Reserve(purpose, int(d.zeroesAt+zeroes)); err != nil {
		return err
	}
	d.base = mem.Addr(f.region.Bytes())
	d.tables, err = mem.Reserve(tablePurpose, int(8*(slots+f.count+2*groups)))
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
	f.loans = mem.View[atomic.Int64](cut(f.count))
	f.used = mem.View[atomic.Uint64](cut(groups))
	f.dirty = mem.View[atomic.Uint64](cut(groups))
	d.initHuge()
	return nil
}

// Info implements backend.Device.
func (d *device) Info() backend.Info { return d.info }

// OpenChannel implements backend.Device. Reads and writes complete within Submit, but for writes
// that wait for a frame; long discards take several polls.
func (d *device) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	c := &channel{d: d, wake: r.Wake, stash: newStash(&d.frames)}
	d.join(c)
	return c, nil
}

// Close implements backend.Device.
func (d *device) Close() error {
	if n := len(*d.channels.Load()); n != 0 {
		return fmt.Errorf("close ram device: %d channels are open", n)
	}
	d.huge.stop()
	return errors.Join(d.frames.region.Unmap(), d.tables.Unmap())
}

type channel struct {
	d    *device
	wake func()
	done backend.List
	// long has discards that are larger than a chunk: a step is made with each Poll, so that
	// nothing else waits for gigabytes.
	long backend.List

	// parked has what waits for a frame, in order. Any reactor that may have freed one sees
	// waiting, sets retry and wakes us.
	parked         backend.List
	waiting, retry atomic.Bool

	batch           batch
	stash           stash
	loans, reserved int // taken and not returned, submitted or canceled
}

// longStep is the most a Poll passes over of a long discard, in bytes: chunks that were never
// written cost next to nothing.
const longStep = 1024 * chunk

// Submit implements backend.Channel.
func (c *channel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		if io.Err = io.Check(c.d.info.Size); io.Err != nil {
			c.done.Push(io)
			continue
		}
		io.Scratch = 0
		if io.Op == backend.OpWrite && io.Flags&backend.ZeroCopy == 0 && c.gather(io) {
			continue
		}
		c.commit()
		switch io.Op {
		case backend.OpRead:
			c.d.read(io)
			c.done.Push(io)
		case backend.OpWrite:
			if io.Flags&backend.ZeroCopy != 0 {
				c.adopt(io)
				c.done.Push(io)
				continue
			}
			c.change(io)
		case backend.OpWriteZeroes, backend.OpDiscard:
			if io.Len > chunk {
				c.long.Push(io)
				c.wake()
				continue
			}
			c.change(io)
		case backend.OpFlush:
			c.done.Push(io)
		default:
			io.Err = fmt.Errorf("ram device: %v: %w", io.Op, backend.ErrUnsupported)
			c.done.Push(io)
		}
	}
	c.commit()
	c.tidy()
	return len(ios)
}

// Poll implements backend.Channel.
func (c *channel) Poll(done []*backend.IO) int {
	if c.retry.Load() {
		c.resume()
	}
	if io := c.long.Pop(); io != nil {
		c.change(io)
		c.tidy()
	}
	return c.done.Fill(done)
}

// Arm implements backend.Channel.
func (c *channel) Arm() bool {
	return c.done.First() == nil && c.long.First() == nil && !c.retry.Load()
}

// Close implements backend.Channel.
func (c *channel) Close() error {
	if c.done.First() != nil || c.long.First() != nil || c.parked.First() != nil {
		return errors.New("close channel of ram device: operations are outstanding")
	}
	if c.loans+c.reserved != 0 {
		return fmt.Errorf("close channel of ram device: %d loans and %d reservations are out",
			c.loans, c.reserved)
	}
	c.stash.shed(len(c.stash.runs))
	c.d.leave(c)
	c.d.progress()
	return nil
}

var (
	_ backend.ZeroCopyReader = (*channel)(nil)
	_ backend.ZeroCopyWriter = (*channel)(nil)
)
