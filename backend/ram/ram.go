// Package ram is storage in memory: as large as it likes, sparse until written, gone when closed.
//
// All of the device is one reserved mapping; the kernel supplies a page when it is first written. A table says which chunks
// have been written: reads of others only clear the caller's memory, and discarding a chunk gives its pages back.
//
// Several reactors use a device at the same time. A logical block must never be seen torn by two racing commands (NVM Express
// Base Specification 1.4, section 6.4: AWUN is at least one block), so each granule of the device, a page or a block if that is
// larger, is copied under a spin lock of its own: one of a table of stripes, found by the granule's number. Commands that touch
// different granules rarely meet on a stripe, hold it for one copy, and hold only one at a time; only freeing a chunk holds all
// stripes of the chunk, and only one reactor does that at a time.
package ram

import (
	"errors"
	"fmt"
	"math/bits"
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
	chunk      = 2 << 20
	chunkShift = 21
	// minGranule is the least that one lock covers.
	minGranule = 4 << 10

	purpose = "ram namespace"
)

type device struct {
	info    backend.Info
	region  *mem.Region
	b       []byte
	written []atomic.Bool // by chunk; changes under the stripes of the chunk
	stripes stripes

	channels atomic.Int32
}

// Open makes a RAM device that reads as zeroes.
func Open(cfg Config) (backend.Device, error) {
	if err := backend.CheckGeometry(cfg.Size, cfg.BlockSize); err != nil {
		return nil, fmt.Errorf("ram device: %w", err)
	}
	region, err := mem.Reserve(purpose, int(cfg.Size))
	if err != nil {
		return nil, fmt.Errorf("ram device: %w", err)
	}
	granule := max(cfg.BlockSize, minGranule)
	return &device{
		info: backend.Info{
			Size: cfg.Size, BlockSize: cfg.BlockSize, PhysicalBlockSize: cfg.BlockSize, OptimalIO: granule,
			Discard: true, DiscardZeroes: true, Identity: "ram",
		},
		region:  region,
		b:       region.Bytes()[:cfg.Size],
		written: make([]atomic.Bool, (cfg.Size+chunk-1)>>chunkShift),
		stripes: stripes{shift: uint(bits.TrailingZeros(uint(granule)))},
	}, nil
}

// Info implements backend.Device.
func (d *device) Info() backend.Info { return d.info }

// OpenChannel implements backend.Device. Reads and writes complete within Submit; long discards take several polls.
func (d *device) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	d.channels.Add(1)
	return &channel{d: d, wake: r.Wake}, nil
}

// Close implements backend.Device.
func (d *device) Close() error {
	if n := d.channels.Load(); n != 0 {
		return fmt.Errorf("close ram device: %d channels are open", n)
	}
	return d.region.Unmap()
}

type channel struct {
	d    *device
	wake func()
	done backend.List
	// long has discards that are larger than a chunk: a step is made with each Poll, so that nothing else waits for
	// gigabytes. Scratch is how many bytes are done.
	long backend.List
}

// longStep is the most a Poll clears or skips of a long discard, in bytes: chunks that were never written cost next to nothing.
const longStep = 1024 * chunk

// Submit implements backend.Channel.
func (c *channel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		if io.Err = io.Check(c.d.info.Size); io.Err != nil {
			c.done.Push(io)
			continue
		}
		switch io.Op {
		case backend.OpRead:
			c.d.read(io)
		case backend.OpWrite:
			c.d.write(io)
		case backend.OpWriteZeroes, backend.OpDiscard:
			if io.Len > chunk {
				io.Scratch = 0
				c.long.Push(io)
				c.wake()
				continue
			}
			for at, end := io.Off, io.Off+io.Len; at < end && io.Err == nil; {
				at, io.Err = c.d.zero(at, end)
			}
		case backend.OpFlush:
		default:
			io.Err = fmt.Errorf("ram device: %v: %w", io.Op, backend.ErrUnsupported)
		}
		c.done.Push(io)
	}
	return len(ios)
}

// Poll implements backend.Channel.
func (c *channel) Poll(done []*backend.IO) int {
	if io := c.long.First(); io != nil {
		from := io.Off + int64(io.Scratch)
		end := io.Off + io.Len
		reached, err := c.d.zero(from, min(end, from+longStep))
		io.Scratch = uint64(reached - io.Off)
		if reached == end || err != nil {
			io.Err = err
			c.done.Push(c.long.Pop())
		}
		if c.long.First() != nil {
			c.wake() // nobody else says that there is more to do
		}
	}
	return c.done.Fill(done)
}

// Arm implements backend.Channel.
func (c *channel) Arm() bool { return c.done.First() == nil && c.long.First() == nil }

// Close implements backend.Channel.
func (c *channel) Close() error {
	if c.done.First() != nil || c.long.First() != nil {
		return errors.New("close channel of ram device: operations are outstanding")
	}
	c.d.channels.Add(-1)
	return nil
}
