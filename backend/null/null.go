// Package null implements storage without data, to show the speed of everything else. Reads return
// zeroes.
package null

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Config describes a null device.
type Config struct {
	// Size is in bytes, a multiple of BlockSize.
	Size int64
	// BlockSize is the logical block size in bytes.
	BlockSize int
}

// zeroes is the memory for zero-copy reads in bytes, all of it the kernel's page of zeroes.
const zeroes = 1 << 20

type device struct {
	info     backend.Info
	region   *mem.Region
	channels atomic.Int32
}

// Probe reports the errors that Open would return.
func Probe(cfg Config) (r backend.Report) {
	if err := backend.CheckGeometry(cfg.Size, cfg.BlockSize); err != nil {
		r.Errorf("Correct size or block_size.", "%v", err)
	}
	return r
}

// Open makes a null device.
func Open(cfg Config) (backend.Device, error) {
	if err := backend.CheckGeometry(cfg.Size, cfg.BlockSize); err != nil {
		return nil, fmt.Errorf("null device: %w", err)
	}
	region, err := mem.Map("null namespace", zeroes)
	if err != nil {
		return nil, fmt.Errorf("null device: %w", err)
	}
	return &device{region: region, info: backend.Info{
		Size: cfg.Size, BlockSize: cfg.BlockSize, PhysicalBlockSize: cfg.BlockSize,
		Discard: true, DiscardZeroes: true, Identity: "null", Volatile: true,
	}}, nil
}

func (d *device) Info() backend.Info { return d.info }

// OpenChannel implements backend.Device. Everything completes within Submit.
func (d *device) OpenChannel(backend.Reactor) (backend.Channel, error) {
	d.channels.Add(1)
	return &channel{d: d}, nil
}

func (d *device) Close() error {
	if n := d.channels.Load(); n != 0 {
		return fmt.Errorf("close null device: %d channels are open", n)
	}
	return d.region.Unmap()
}

type channel struct {
	d     *device
	done  list.List[backend.IO]
	reads int // zero-copy reads that have not ended
}

func (c *channel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		io.Err = io.Check(c.d.info.Size)
		if io.Op == backend.OpRead && io.Err == nil {
			// The memory still holds other data.
			for i := range io.Segs {
				clear(io.Segs[i].B)
			}
		}
		c.done.Push(io, &io.Node)
	}
	return len(ios)
}

func (c *channel) Poll(done []*backend.IO) int { return c.done.Fill(done) }

func (c *channel) Arm() bool { return c.done.Empty() }

func (c *channel) StartZeroCopyRead(dst []mem.Segment, off, n int64) ([]mem.Segment, bool) {
	if size := c.d.info.Size; n <= 0 || uint64(off) > uint64(size) || n > size-off {
		return dst, false
	}
	for ; n > 0; n -= zeroes {
		k := min(n, zeroes)
		dst = append(dst, mem.Segment{B: c.d.region.Bytes()[:k:k], Region: c.d.region.ID()})
	}
	c.reads++
	return dst, true
}

func (c *channel) EndZeroCopyRead([]mem.Segment, int64, int64) { c.reads-- }

func (c *channel) WriterWaits() bool { return false }

func (c *channel) Close() error {
	if !c.done.Empty() {
		return errors.New("close channel of null device: operations are outstanding")
	}
	if c.reads != 0 {
		return fmt.Errorf("close channel of null device: %d zero-copy reads have not ended",
			c.reads)
	}
	c.d.channels.Add(-1)
	return nil
}

var _ backend.ZeroCopyReader = (*channel)(nil)
