// Package backendtest checks that storage keeps the contract of package backend. Run is the
// conformance suite that every device has to pass. Client is a user of one channel. Faulty is a
// device that fails on request.
package backendtest

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// Deadline is how long a Client waits for a device.
const Deadline = testutil.Patience

// Client uses one channel of a device as a reactor does: when Poll returns nothing, it sleeps until
// it is woken. One goroutine uses it, and is locked to its thread from the first use to Close.
type Client struct {
	tb      testing.TB
	Channel backend.Channel
	eventFD int // an eventfd
	locked  bool
	done    [16]*backend.IO
	region  *mem.Region
	// out is the set of IOs that have been submitted and not returned.
	out map[*backend.IO]bool
}

// NewClient opens a channel of dev, with size bytes of memory for data. The caller closes it.
func NewClient(tb testing.TB, dev backend.Device, size int) *Client {
	tb.Helper()
	c := &Client{tb: tb, out: map[*backend.IO]bool{}}
	var err error
	if c.eventFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		tb.Fatal(err)
	}
	if c.region, err = mem.Map("backendtest", size); err != nil {
		tb.Fatal(err)
	}
	c.Channel, err = dev.OpenChannel(backend.Reactor{
		Wake: c.wake, EventFD: c.eventFD, Memory: c.region,
	})
	testutil.Must(tb, err)
	return c
}

// Use is NewClient, but the end of the test closes the client and dev.
func Use(tb testing.TB, dev backend.Device, size int) *Client {
	tb.Helper()
	c := NewClient(tb, dev, size)
	tb.Cleanup(func() {
		c.Close()
		testutil.Check(tb, dev.Close())
	})
	return c
}

// BenchmarkReads makes 32 reads of size bytes per call of Submit and Poll, on a device that
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

func (c *Client) wake() { _, _ = unix.Write(c.eventFD, eventOne) }

// Sleep waits until the channel, which has been armed, wakes the client.
func (c *Client) Sleep() {
	c.tb.Helper()
	fds := []unix.PollFd{{Fd: int32(c.eventFD), Events: unix.POLLIN}}
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
		_, _ = unix.Read(c.eventFD, count[:])
		return
	}
}

// Close closes the channel and frees the memory.
func (c *Client) Close() {
	c.tb.Helper()
	testutil.Check(c.tb, errors.Join(c.Channel.Close(), c.region.Unmap(), unix.Close(c.eventFD)))
	if c.locked {
		runtime.UnlockOSThread()
	}
}

// Memory returns n bytes of the client's memory at off.
func (c *Client) Memory(off, n int) []byte { return c.region.Bytes()[off : off+n : off+n] }

// Segs returns b as segments, cut at the given positions.
func (c *Client) Segs(b []byte, cuts ...int) []mem.Segment {
	var segs []mem.Segment
	at := 0
	for _, cut := range append(cuts, len(b)) {
		segs = append(segs, mem.Segment{B: b[at:cut], Region: c.region.ID()})
		at = cut
	}
	return segs
}

// Lock locks the calling goroutine to its thread until Close, as a reactor is. Tests that use
// Channel directly call it first.
func (c *Client) Lock() {
	if !c.locked {
		c.locked = true
		runtime.LockOSThread()
	}
}

// Submit starts all ios. It polls when the device is full, and returns the IOs that finished in the
// meantime.
func (c *Client) Submit(ios ...*backend.IO) (finished []*backend.IO) {
	c.tb.Helper()
	c.Lock()
	for _, io := range ios {
		testutil.MustTrue(c.tb, !c.out[io], "the test submits an IO twice")
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

// Wait waits until at least n IOs have finished, and returns them.
func (c *Client) Wait(n int) (finished []*backend.IO) {
	c.tb.Helper()
	for len(finished) < n {
		got := c.Channel.Poll(c.done[:])
		for _, io := range c.done[:got] {
			testutil.MustTrue(c.tb, c.out[io], "Poll returned an IO that the device does not have")
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

// Do starts ios, waits until all outstanding ones have finished, and returns their errors.
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
	testutil.Must(c.tb, c.Do(ios...))
}

// Read returns an IO that reads at off into b, as segments cut at the given positions.
func (c *Client) Read(off int64, b []byte, cuts ...int) *backend.IO {
	return &backend.IO{Op: backend.OpRead, Off: off, Len: int64(len(b)), Segs: c.Segs(b, cuts...)}
}

// Write returns an IO that writes b at off, as segments cut at the given positions.
func (c *Client) Write(off int64, b []byte, cuts ...int) *backend.IO {
	return &backend.IO{Op: backend.OpWrite, Off: off, Len: int64(len(b)), Segs: c.Segs(b, cuts...)}
}

// random is 2 MiB of random bytes. They are made once, because the race detector makes it slow.
var random = sync.OnceValue(func() []byte {
	b := make([]byte, 2<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
})

func fill(b []byte, seed uint64) {
	at := seed * 0x9e3779b97f4a7c15 >> 44 // below 1 MiB
	for len(b) > 0 {
		n := copy(b, random()[at:])
		b, at = b[n:], 0
	}
}
