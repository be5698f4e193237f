// Package backendtest checks that storage keeps the contract of package backend: Run is the conformance suite that every device
// passes, Client a user of one channel, Faulty a device that fails on request.
package backendtest

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Deadline is how long a Client waits for a device.
const Deadline = 30 * time.Second

// Client uses one channel of a device as a reactor does: it sleeps until it is woken when Poll has nothing. One goroutine uses it.
type Client struct {
	tb      testing.TB
	Channel backend.Channel
	bell    chan struct{}
	done    [16]*backend.IO
	region  *mem.Region
	// out is what has been submitted and not returned yet.
	out map[*backend.IO]bool
}

// NewClient opens a channel of dev, with size bytes of memory for data. Close it.
func NewClient(tb testing.TB, dev backend.Device, size int) *Client {
	tb.Helper()
	c := &Client{tb: tb, bell: make(chan struct{}, 1), out: map[*backend.IO]bool{}}
	var err error
	c.Channel, err = dev.OpenChannel(func() {
		select {
		case c.bell <- struct{}{}:
		default:
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	if c.region, err = mem.Map("backendtest", size); err != nil {
		tb.Fatal(err)
	}
	return c
}

// Close closes the channel and frees the memory.
func (c *Client) Close() {
	c.tb.Helper()
	if err := errors.Join(c.Channel.Close(), c.region.Unmap()); err != nil {
		c.tb.Error(err)
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

// Submit starts all ios. It polls when the device is full; finished are those it got back meanwhile.
func (c *Client) Submit(ios ...*backend.IO) (finished []*backend.IO) {
	c.tb.Helper()
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
		select {
		case <-c.bell:
		case <-time.After(Deadline):
			c.tb.Fatalf("no wake-up within %v, %d IOs are outstanding", Deadline, len(c.out))
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
	rnd := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	_, _ = rnd.Read(b)
}
