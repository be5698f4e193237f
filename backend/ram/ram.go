// Package ram is storage in memory: as large as it likes, sparse until written, gone when closed.
//
// All of the device is one reserved mapping; the kernel supplies a page when it is first written. A table says which chunks
// have been written: reads of others only clear the caller's memory, and discarding a chunk gives its pages back.
//
// Several reactors use a device at the same time. A logical block must never be seen torn by two racing commands (NVM Express
// Base Specification 1.4, section 6.4: AWUN is at least one block), so each granule of the device, a page or a block if that is
// larger, is copied under a spin lock of its own: one of a table of stripes, found by the granule's number. Commands that touch
// different granules rarely meet on a stripe, hold it for one copy, and hold only one at a time; only freeing a chunk holds all
// stripes of the chunk, and only one reactor does that at a time. Reads that copy nothing borrow granules instead: their stripes count
// loans, for which writers wait without holding anything (lend.go).
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
	// chunk is the unit in which memory is counted and given back.
	chunk      = mem.ChunkSize
	chunkShift = 21
	maxSize    = 1 << 60
	// minGranule is the least that one lock covers.
	minGranule = 4 << 10

	purpose = "ram namespace"
)

type device struct {
	info    backend.Info
	region  *mem.Region
	b       []byte
	zeroes  []byte        // see the constant
	written []atomic.Bool // by chunk; changes under the stripes of the chunk
	stripes stripes

	mu       sync.Mutex // held by those who change channels
	channels atomic.Pointer[[]*channel]
}

// Open makes a RAM device that reads as zeroes.
func Open(cfg Config) (backend.Device, error) {
	if err := backend.CheckGeometry(cfg.Size, cfg.BlockSize); err != nil {
		return nil, fmt.Errorf("ram device: %w", err)
	}
	if cfg.Size > maxSize {
		return nil, fmt.Errorf("ram device: size %d: must be at most %d", cfg.Size, int64(maxSize))
	}
	chunks := (cfg.Size + chunk - 1) >> chunkShift
	region, err := mem.Reserve(purpose, int(chunks<<chunkShift+zeroes))
	if err != nil {
		return nil, fmt.Errorf("ram device: %w", err)
	}
	granule := max(cfg.BlockSize, minGranule)
	d := &device{
		info: backend.Info{
			Size: cfg.Size, BlockSize: cfg.BlockSize, PhysicalBlockSize: cfg.BlockSize, OptimalIO: granule,
			Discard: true, DiscardZeroes: true, Identity: "ram",
		},
		region:  region,
		b:       region.Bytes()[:cfg.Size],
		zeroes:  region.Bytes()[chunks<<chunkShift:][:zeroes],
		written: make([]atomic.Bool, chunks),
		stripes: newStripes(cfg.Size, uint(bits.TrailingZeros(uint(granule)))),
	}
	d.channels.Store(new([]*channel))
	return d, nil
}

// Info implements backend.Device.
func (d *device) Info() backend.Info { return d.info }

// OpenChannel implements backend.Device. Reads and writes complete within Submit, but for writes that wait for a loan; long discards
// take several polls.
func (d *device) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	c := &channel{d: d, wake: r.Wake}
	d.join(c)
	return c, nil
}

// Close implements backend.Device.
func (d *device) Close() error {
	if n := len(*d.channels.Load()); n != 0 {
		return fmt.Errorf("close ram device: %d channels are open", n)
	}
	return d.region.Unmap()
}

type channel struct {
	d    *device
	wake func()
	done backend.List
	// long has discards that are larger than a chunk: a step is made with each Poll, so that nothing else waits for
	// gigabytes.
	long backend.List

	// parked has what waits for loans of others, in order. Any reactor that returns one sees waiting, sets retry and wakes us.
	parked         backend.List
	waiting, retry atomic.Bool
	loans          int // taken and not returned
}

// longStep is the most a Poll passes over of a long discard, in bytes: chunks that were never written cost next to nothing.
const longStep = 1024 * chunk

// Submit implements backend.Channel.
func (c *channel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		if io.Err = io.Check(c.d.info.Size); io.Err != nil {
			c.done.Push(io)
			continue
		}
		io.Scratch = 0
		switch io.Op {
		case backend.OpRead:
			c.d.read(io)
			c.done.Push(io)
		case backend.OpWrite:
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
	return len(ios)
}

// Poll implements backend.Channel.
func (c *channel) Poll(done []*backend.IO) int {
	if c.retry.Load() {
		c.resume()
	}
	if io := c.long.Pop(); io != nil {
		c.change(io)
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
	if c.loans != 0 {
		return fmt.Errorf("close channel of ram device: %d loans are out", c.loans)
	}
	c.d.leave(c)
	return nil
}

var _ backend.Lender = (*channel)(nil)
