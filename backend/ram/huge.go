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

// huge puts memory that has been written all over into huge pages, an area of 2 MiB at a time.
// Blocks read at random are then found without a walk through page tables that no cache holds.
// Areas that are written in part stay as they are: whole ones would take memory that nobody asked
// for. What is discarded of a huge page comes back to the kernel when it looks for memory. A pass
// runs on a goroutine of its own, a while after frames have been populated; none does where the
// machine is set to have no huge pages, or where an RDMA device has some of the memory registered.
type huge struct {
	timer   *time.Timer
	pending atomic.Bool // a pass is going to begin, or none can do anything
	ctx     context.Context
	end     context.CancelFunc
	mu      sync.Mutex // held by a pass, and by Close to wait for it
	rest    int        // a pass rests this many times as long as an area took, behind it
	first   int64      // offset of the first area in the region
	tried   []bool     // by area: it is in huge pages, or the kernel had none
}

const (
	hugeDelay = time.Second
	// The kernel takes 1 to 4 ms to move an area and does not give its CPU away meanwhile. If no
	// other is free that is a reactor's, and its commands wait. Of all commands that meets the
	// share that their latency is of the time between two areas: with a latency below 250 µs less
	// than one in a thousand, as p99.9 wants.
	hugeRest = 249
)

func (d *device) initHuge() {
	h := &d.huge
	h.first = int64(-d.base & (chunk - 1))
	h.tried = make([]bool, max(d.frames.count<<d.frames.shift-h.first, 0)>>chunkShift)
	h.ctx, h.end = context.WithCancel(context.Background())
	h.rest = hugeRest
	h.timer = time.AfterFunc(hugeDelay, d.collapse)
	h.timer.Stop()
	d.frames.filled = h.soon
	h.pending.Store(unwanted("/sys/kernel/mm/transparent_hugepage/enabled"))
}

// unwanted says that a setting of Documentation/admin-guide/mm/transhuge.rst is "never", which
// MADV_COLLAPSE does not care about.
func unwanted(name string) bool {
	b, err := os.ReadFile(name)
	return err == nil && bytes.Contains(b, []byte("[never]"))
}

// soon has a pass begin. Any goroutine may call it.
func (h *huge) soon() {
	if h.pending.CompareAndSwap(false, true) {
		h.timer.Reset(hugeDelay)
	}
}

// stop ends a pass and waits for it. There is no other one.
func (h *huge) stop() {
	h.end()
	h.timer.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
}

// collapse is a pass.
func (d *device) collapse() {
	h := &d.huge
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending.Store(false) // what is populated from now on needs another pass
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
			continue // discarded since
		}
		start := time.Now()
		if err := d.frames.region.Collapse(int(off), chunk); errors.Is(err, unix.EINVAL) ||
			errors.Is(err, mem.ErrPinned) {
			// this kernel has no huge pages, or cannot be asked, or devices use the memory as it is
			h.pending.Store(true)
			return
		}
		select {
		case <-h.ctx.Done():
		case <-time.After(time.Duration(h.rest) * time.Since(start)):
		}
	}
}
