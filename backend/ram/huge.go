package ram

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// huge moves fully written memory into huge pages, an area of 2 MiB at a time, so that a random
// read finds its block without a walk through uncached page tables. Areas that are partly written
// stay as they are: a huge page would take memory that no host asked for. Discarded parts of a huge
// page return to the kernel when it needs memory.
//
// A pass over the areas runs on its own goroutine, some time after frames have been populated. No
// pass runs if huge pages are disabled on the machine, or if an RDMA device has some of the memory
// registered.
type huge struct {
	timer   *time.Timer
	pending atomic.Bool // a pass is about to begin, or passes are useless here
	ctx     context.Context
	end     context.CancelFunc
	mu      sync.Mutex // held by a pass, and by Close to wait for it
	pause   int        // a pass sleeps this many times as long as each area took
	first   int64      // offset of the first area in the region
	tried   []bool     // by area: it is in huge pages, or the kernel had none
}

const (
	hugeDelay = time.Second
	// The kernel takes 1 to 4 ms to move an area and does not yield its CPU in that time. If no
	// other CPU is free, it takes a reactor's, and the commands there wait. One part in 250 keeps
	// the share of such commands below one in a thousand, and so p99.9 (measured in docs/adr/0012).
	hugePause = 249
)

func (d *device) initHuge() {
	h := &d.huge
	h.first = int64(-d.base & (chunk - 1))
	h.tried = make([]bool, max(d.frames.count<<d.frames.shift-h.first, 0)>>chunkShift)
	h.ctx, h.end = context.WithCancel(context.Background())
	h.pause = hugePause
	h.timer = time.AfterFunc(hugeDelay, d.collapse)
	h.timer.Stop()
	d.frames.filled = h.schedule
	h.pending.Store(disabled("/sys/kernel/mm/transparent_hugepage/enabled"))
}

// disabled reports whether a setting (transhuge.rst) is "never", which MADV_COLLAPSE ignores.
func disabled(name string) bool {
	b, err := os.ReadFile(name)
	return err == nil && bytes.Contains(b, []byte("[never]"))
}

// schedule starts a pass after hugeDelay. Any goroutine may call it.
func (h *huge) schedule() {
	if h.pending.CompareAndSwap(false, true) {
		h.timer.Reset(hugeDelay)
	}
}

// stop ends a pass and waits for it. No other one begins.
func (h *huge) stop() {
	h.end()
	h.timer.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
}

// collapse makes one pass.
func (d *device) collapse() {
	h := &d.huge
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending.Store(false) // memory populated from now on needs another pass
	for i := range h.tried {
		if h.ctx.Err() != nil {
			return
		}
		off := h.first + int64(i)<<chunkShift
		full := d.frames.populated(off, off+chunk)
		if full == h.tried[i] {
			continue
		}
		if h.tried[i] = full; !full {
			continue // discarded in the meantime
		}
		start := time.Now()
		if err := d.frames.region.Collapse(int(off), chunk); errors.Is(err, unix.EINVAL) ||
			errors.Is(err, mem.ErrPinned) {
			// This kernel has no huge pages or no such call, or devices have the memory registered.
			h.pending.Store(true)
			return
		}
		select {
		case <-h.ctx.Done():
		case <-time.After(time.Duration(h.pause) * time.Since(start)):
		}
	}
}
