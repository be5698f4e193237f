// Package backendtest checks that storage keeps the contract of package backend: Run is the
// conformance suite that every device passes, Client a user of one channel, Faulty a device that
// fails on request.
package backendtest

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Deadline is how long a Client waits for a device.
const Deadline = 30 * time.Second

// Client uses one channel of a device as a reactor does: it sleeps until it is woken when Poll has
// nothing. One goroutine uses it, which is locked to its thread from the first use to Close.
type Client struct {
	tb      testing.TB
	Channel backend.Channel
	bell    int // an eventfd
	locked  bool
	done    [16]*backend.IO
	region  *mem.Region
	// out is what has been submitted and not returned yet.
	out map[*backend.IO]bool
}

// NewClient opens a channel of dev, with size bytes of memory for data. Close it.
func NewClient(tb testing.TB, dev backend.Device, size int) *Client {
	tb.Helper()
	c := &Client{tb: tb, out: map[*backend.IO]bool{}}
	var err error
	if c.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		tb.Fatal(err)
	}
	if c.region, err = mem.Map("backendtest", size); err != nil {
		tb.Fatal(err)
	}
	c.Channel, err = dev.OpenChannel(backend.Reactor{
		Wake: c.wake, EventFD: c.bell, Memory: c.region,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// BenchmarkReads reads 32 blocks of size bytes per call of Submit and Poll, from a device that
// completes them at once.
func BenchmarkReads(b *testing.B, dev backend.Device, size int) {
	c := NewClient(b, dev, 1<<20)
	defer c.Close()
	ios, done := make([]*backend.IO, 32), make([]*backend.IO, 32)
	for i := range ios {
		ios[i] = c.Read(int64(i)<<12, c.Memory(i<<12, size))
	}
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(ios) {
		c.Channel.Submit(ios)
		c.Channel.Poll(done)
	}
}

var eventOne = binary.NativeEndian.AppendUint64(nil, 1)

func (c *Client) wake() { _, _ = unix.Write(c.bell, eventOne) }

// Sleep waits until the channel, after an Arm, has rung the bell.
func (c *Client) Sleep() {
	c.tb.Helper()
	fds := []unix.PollFd{{Fd: int32(c.bell), Events: unix.POLLIN}}
	for end := time.Now().Add(Deadline); ; {
		n, err := unix.Poll(fds, int(time.Until(end).Milliseconds()))
		if err == unix.EINTR && time.Now().Before(end) {
			continue
		}
		if err != nil || n == 0 {
			c.tb.Fatalf("no wake-up within %v, %d IOs are outstanding (%v)", Deadline, len(c.out),
				err)
		}
		var count [8]byte
		_, _ = unix.Read(c.bell, count[:])
		return
	}
}

// Close closes the channel and frees the memory.
func (c *Client) Close() {
	c.tb.Helper()
	if err := errors.Join(c.Channel.Close(), c.region.Unmap(), unix.Close(c.bell)); err != nil {
		c.tb.Error(err)
	}
	if c.locked {
		runtime.UnlockOSThread()
	}
}

// Memory is n bytes of the client's memory at off.
func (c *Client) Memory(off, n int) []byte { return c.region.Bytes()[off : off+n : off+n] }

// Segs makes segments of b, cut at the given positions.
func (c *Client) Segs(b []byte, cuts ...int) []mem.Segment {
	var segs []mem.Segment
	at := 0
	for _, cut := range append(cuts, len(b)) {
		segs = append(segs, mem.Segment{B: b[at:cut], Region: c.region.ID()})
		at = cut
	}
	return segs
}

// Lock locks the calling goroutine to its thread until Close, as a reactor's is. Users of Channel
// itself call it before.
func (c *Client) Lock() {
	if !c.locked {
		c.locked = true
		runtime.LockOSThread()
	}
}

// Submit starts all ios. It polls when the device is full; finished are those it got back
// meanwhile.
func (c *Client) Submit(ios ...*backend.IO) (finished []*backend.IO) {
	c.tb.Helper()
	c.Lock()
	for _, io := range ios {
		if c.out[io] {
			c.tb.Fatal("the test submits an IO twice")
		}
		c.out[io] = true
	}
	for len(ios) > 0 {
		n := c.Channel.Submit(ios)
		if n < 0 || n > len(ios) {
			c.tb.Fatalf("Submit took %d of %d", n, len(ios))
		}
		if ios = ios[n:]; len(ios) > 0 {
			finished = append(finished, c.Wait(1)...)
		}
	}
	return finished
}

// Wait waits for at least n IOs to finish.
func (c *Client) Wait(n int) (finished []*backend.IO) {
	c.tb.Helper()
	for len(finished) < n {
		got := c.Channel.Poll(c.done[:])
		for _, io := range c.done[:got] {
			if !c.out[io] {
				c.tb.Fatal("Poll returned an IO that the device does not have")
			}
			delete(c.out, io)
			finished = append(finished, io)
		}
		if got > 0 {
			continue
		}
		if c.Channel.Arm() {
			c.Sleep()
		}
	}
	return finished
}

// Do starts ios and waits until all outstanding ones are finished. It returns the errors.
func (c *Client) Do(ios ...*backend.IO) error {
	c.tb.Helper()
	finished := c.Submit(ios...)
	finished = append(finished, c.Wait(len(c.out))...)
	var errs []error
	for _, io := range finished {
		errs = append(errs, io.Err)
	}
	return errors.Join(errs...)
}

// MustDo is Do that fails the test on errors.
func (c *Client) MustDo(ios ...*backend.IO) {
	c.tb.Helper()
	if err := c.Do(ios...); err != nil {
		c.tb.Fatal(err)
	}
}

// Read is an IO that reads into b, Write one that writes it.
func (c *Client) Read(off int64, b []byte, cuts ...int) *backend.IO {
	return &backend.IO{Op: backend.OpRead, Off: off, Len: int64(len(b)), Segs: c.Segs(b, cuts...)}
}

// Write is an IO that writes b at off.
func (c *Client) Write(off int64, b []byte, cuts ...int) *backend.IO {
	return &backend.IO{Op: backend.OpWrite, Off: off, Len: int64(len(b)), Segs: c.Segs(b, cuts...)}
}

// fill makes b differ everywhere from what other seeds give.
func fill(b []byte, seed uint64) {
	rnd := rand.NewChaCha8([32]byte{
		byte(seed), byte(seed >> 8), byte(seed >> 16),
		byte(seed >> 24),
	})
	_, _ = rnd.Read(b)
}
