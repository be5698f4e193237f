package backendtest

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// echo is a device that completes everything at once and takes at most 4 IOs.
type echo struct {
	backend.Device
	open int
}

type echoChannel struct {
	d    *echo
	done list.List[backend.IO]
	n    int
}

func (d *echo) OpenChannel(backend.Reactor) (backend.Channel, error) {
	d.open++
	return &echoChannel{d: d}, nil
}
func (d *echo) Close() error { return nil }

func (c *echoChannel) Submit(ios []*backend.IO) int {
	for i, io := range ios {
		if c.n == 4 {
			return i
		}
		c.n++
		io.Err = nil
		c.done.Push(io, &io.Node)
	}
	return len(ios)
}

func (c *echoChannel) Poll(done []*backend.IO) int {
	n := c.done.Fill(done)
	c.n -= n
	return n
}

func (c *echoChannel) Arm() bool { return c.done.Empty() }

func (c *echoChannel) Close() error { c.d.open--; return nil }

func TestFaulty(t *testing.T) {
	inner := &echo{}
	f := NewFaulty(inner)
	c := NewClient(t, f, 4096)
	read := func() *backend.IO { return c.Read(0, c.Memory(0, 512)) }
	write := func() *backend.IO { return c.Write(0, c.Memory(0, 512)) }
	c.MustDo(read(), write())

	f.Fail(func(io *backend.IO) error {
		if io.Op == backend.OpWrite {
			return backend.ErrNoSpace
		}
		return nil
	})
	testutil.Is(t, c.Do(write()), backend.ErrNoSpace, "write")
	c.MustDo(read())
	f.Fail(nil)
	c.MustDo(write())

	f.Hold(func(io *backend.IO) bool { return io.Op == backend.OpRead })
	held := make([]*backend.IO, 10)
	for i := range held {
		held[i] = read()
	}
	c.Submit(held...)
	w := write()
	c.Submit(w)
	if got := c.Wait(1); len(got) != 1 || got[0] != w || f.Held() != 10 {
		t.Errorf("while reads are held: %v came back, %d held", got, f.Held())
	}
	testutil.True(t, c.Channel.Close() != nil, "closed with IOs held")
	f.Release()
	if got := c.Wait(10); len(got) != 10 || f.Held() != 0 {
		t.Errorf("after the release %d came back, %d held", len(got), f.Held())
	}

	f.Full(true)
	testutil.Equal(t, c.Channel.Submit([]*backend.IO{read()}), 0, "a full device took")
	f.Full(false)
	c.MustDo(read())
	c.Close()
	testutil.Equal(t, inner.open, 0, "the inner channel is open")
}
