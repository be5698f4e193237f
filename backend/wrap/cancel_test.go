package wrap

import (
	"bytes"
	"container/heap"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// canceled cancels operations that have not reached the device.
func canceled(t *testing.T, c *backendtest.Client, ios ...*backend.IO) {
	t.Helper()
	for _, io := range ios {
		c.Channel.(backend.Canceler).Cancel(io)
	}
	testutil.True(t, !c.Channel.Arm(), "sleeps with operations that are done")
	c.Wait(len(ios))
	for i, io := range ios {
		testutil.True(t, errors.Is(io.Err, backend.ErrAborted), "operation %d: %v, want %v", i,
			io.Err, backend.ErrAborted)
	}
}

// TestCancelDelayed: a delayed write that is canceled comes back at once, through all wrappers, and
// never reaches the device. The others stay.
func TestCancelDelayed(t *testing.T) {
	inner := openRAM(t)
	delay := DelayConfig{Latency: time.Hour, Ops: []backend.Op{backend.OpWrite}}
	c := use(t, Error(Delay(inner, delay), ErrorConfig{
		Err: backend.ErrIO, Offset: 1 << 62, Ops: []backend.Op{backend.OpRead},
	}))
	var ios []*backend.IO
	for i := range 100 {
		copy(c.Memory(i<<9, 512), bytes.Repeat([]byte{1}, 512))
		ios = append(ios, c.Write(int64(i)<<9, c.Memory(i<<9, 512)))
	}
	c.Submit(ios...)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(ios), func(i, j int) {
		ios[i], ios[j] = ios[j], ios[i]
	})
	canceled(t, c, ios...)
	direct := backendtest.NewClient(t, inner, 1<<20)
	defer direct.Close()
	got := direct.Memory(0, 100<<9)
	direct.MustDo(direct.Read(0, got))
	testutil.True(t, bytes.Equal(got, make([]byte, len(got))),
		"a write that was canceled has reached the device")
}

// TestCancelRefused: an operation that a full device refuses comes back when canceled, whether it
// was submitted to the device or not. The device itself cancels the operations that it has.
func TestCancelRefused(t *testing.T) {
	f := backendtest.NewFaulty(openRAM(t))
	c := use(t, Delay(f, DelayConfig{}))
	f.Hold(nil)
	held := c.Read(0, c.Memory(0, 512))
	c.Submit(held)
	f.Full(true)
	var ios []*backend.IO
	for i := range 3 * batchSize {
		ios = append(ios, c.Write(int64(i)<<9, c.Memory(i<<9, 512)))
	}
	c.Submit(ios...)
	canceled(t, c, ios[2], ios[0], ios[batchSize-1], ios[2*batchSize], ios[len(ios)-1])
	c.Channel.(backend.Canceler).Cancel(held)
	testutil.Equal(t, f.Held(), 1, "commands that the device has")
	f.HonorCancel()
	canceled(t, c, held)
	f.Release()
	f.Full(false)
	c.Wait(len(ios) - 5)
}

// TestDelayed: a removed operation is gone, and the rest comes in order.
func TestDelayed(t *testing.T) {
	var d delayed
	r := rand.New(rand.NewPCG(1, 2))
	ios := make([]backend.IO, 1000)
	for i := range ios {
		ios[i].Scratch = r.Uint64N(100)
		heap.Push(&d, &ios[i])
	}
	for i := range ios {
		if i%3 != 0 {
			heap.Remove(&d, slices.Index(d, &ios[i]))
		}
	}
	testutil.True(t, len(d) == 334 && !slices.Contains(d, &ios[1]), "%d are left", len(d))
	for last := uint64(0); len(d) > 0; heap.Pop(&d) {
		testutil.MustTrue(t, d[0].Scratch >= last, "%d after %d", d[0].Scratch, last)
		last = d[0].Scratch
	}
}
