package wrap

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func openRAM(t testing.TB) backend.Device {
	t.Helper()
	dev := testutil.Value(ram.Open(ram.Config{Size: backendtest.MinSize, BlockSize: 512}))(t)
	return dev
}

func TestConformance(t *testing.T) {
	for name, wrap := range map[string]func(backend.Device) backend.Device{
		"nothing": func(d backend.Device) backend.Device { return Delay(d, DelayConfig{}) },
		"delay": func(d backend.Device) backend.Device {
			return Delay(d,
				DelayConfig{Latency: 20 * time.Microsecond, Jitter: 100 * time.Microsecond})
		},
		"error elsewhere": func(d backend.Device) backend.Device {
			return Error(d,
				ErrorConfig{
					Err: backend.ErrIO, Offset: 1 << 62,
					Ops: []backend.Op{backend.OpRead, backend.OpWrite},
				})
		},
		"all": func(d backend.Device) backend.Device {
			d = Delay(d, DelayConfig{Latency: time.Microsecond})
			return Error(d,
				ErrorConfig{Err: backend.ErrIO, Offset: 1 << 62, Ops: []backend.Op{backend.OpRead}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Device { return wrap(openRAM(t)) },
				backendtest.Options{})
		})
	}
}

func TestDelay(t *testing.T) {
	const latency = 20 * time.Millisecond
	reads := []backend.Op{backend.OpRead}
	never := backendtest.Use(t,
		Delay(openRAM(t), DelayConfig{Latency: time.Hour, Ops: reads}), 1<<20)
	never.MustDo(never.Write(0, never.Memory(0, 512)))
	c := backendtest.Use(t, Delay(openRAM(t), DelayConfig{Latency: latency, Ops: reads}), 1<<20)
	ios := make([]*backend.IO, 100)
	for i := range ios {
		ios[i] = c.Read(0, c.Memory(i<<9, 512))
	}
	began := clock()
	c.Submit(ios...)
	due := c.Channel.(*channel).delayed.At(place(ios[0]))
	for i, io := range ios {
		at := c.Channel.(*channel).delayed.At(place(io))
		testutil.True(t, at == due && at >= began+int64(latency),
			"at %d: read %d is due at %d, the first at %d", began, i, at, due)
	}
	c.Wait(len(ios))
	d := clock() - began
	testutil.True(t, d >= int64(latency), "100 reads took %d ns, want at least %v", d, latency)
}

// TestManyDue: a step takes some operations to the device, however many are due.
func TestManyDue(t *testing.T) {
	f := backendtest.NewFaulty(openRAM(t))
	c := backendtest.Use(t, Delay(f, DelayConfig{Latency: 1}), 1<<20)
	f.Hold(nil)
	var ios []*backend.IO
	for range 3 * batchSize {
		ios = append(ios, c.Read(0, c.Memory(0, 512)))
	}
	c.Submit(ios...)
	submitted := clock()
	testutil.Until(t, "all are due", func() bool { return clock() > submitted+1 })
	c.Channel.Poll(make([]*backend.IO, 1))
	testutil.Equal(t, f.Held(), batchSize, "operations at the device")
	testutil.True(t, !c.Channel.Arm(), "sleeps while operations are due")
	f.Release()
	c.Wait(len(ios))
}

func TestJitter(t *testing.T) {
	times := func(seed, channel uint64) []int64 {
		p := Delay(nil, DelayConfig{Latency: 10, Jitter: 5, Seed: seed}).(*device).policy(channel)
		out := make([]int64, 200)
		for i := range out {
			out[i], _ = p.admit(&backend.IO{}, 100)
			testutil.MustTrue(t, out[i] >= 110 && out[i] <= 115, "due at %d, want 110 to 115",
				out[i])
		}
		return out
	}
	first := times(1, 0)
	testutil.True(t, slices.Min(first) == 110 && slices.Max(first) == 115, "not all of 110 to 115")
	testutil.True(t, slices.Equal(first, times(1, 0)), "not repeatable")
	testutil.True(t, !slices.Equal(first, times(2, 0)) && !slices.Equal(first, times(1, 1)),
		"other seeds and channels are alike")
}

func TestError(t *testing.T) {
	c := backendtest.Use(t, Error(openRAM(t),
		ErrorConfig{
			Err: backend.ErrNoSpace, Offset: 4096, Length: 1024,
			Ops: []backend.Op{backend.OpWrite, backend.OpFlush},
		}), 1<<20)
	try := func(io *backend.IO) error {
		c.Submit(io)
		c.Wait(1)
		return io.Err
	}
	for _, tc := range []struct {
		off, n int
		want   error
	}{
		{0, 4096, nil},
		{0, 4608, backend.ErrNoSpace},
		{4096, 512, backend.ErrNoSpace},
		{4608, 512, backend.ErrNoSpace},
		{5120, 512, nil},
	} {
		testutil.Is(t, try(c.Write(int64(tc.off), c.Memory(0, tc.n))), tc.want,
			"write of %d bytes at %d", tc.n, tc.off)
	}
	testutil.Equal(t, try(c.Read(4096, c.Memory(0, 512))), nil, "read")
	testutil.Is(t, try(&backend.IO{Op: backend.OpFlush}), backend.ErrNoSpace, "flush")
}

func TestErrorRate(t *testing.T) {
	count := func(seed uint64) (n int) {
		p := Error(nil, ErrorConfig{Err: backend.ErrIO, OneIn: 100, Seed: seed}).(*device).policy(0)
		for range 100_000 {
			if _, err := p.admit(&backend.IO{Len: 512}, 0); err != nil {
				n++
			}
		}
		return n
	}
	n := count(1)
	testutil.True(t, n >= 800 && n <= 1200, "%d of 100000 failed, want about 1000", n)
	testutil.Equal(t, count(1), n, "not repeatable")
}

// TestFullDevice: operations that a full device refuses are submitted again.
func TestFullDevice(t *testing.T) {
	f := backendtest.NewFaulty(openRAM(t))
	c := backendtest.Use(t, Delay(f, DelayConfig{}), 1<<20)
	f.Full(true)
	ios := make([]*backend.IO, 3*batchSize)
	for i := range ios {
		ios[i] = c.Write(int64(i)<<9, c.Memory(i<<9, 512))
	}
	c.Submit(ios...)
	testutil.True(t, !c.Channel.Arm(), "sleeps although the full device has nothing to complete")
	f.Full(false)
	c.Wait(len(ios))
}

func TestCloseWithDelayed(t *testing.T) {
	dev := Delay(openRAM(t), DelayConfig{Latency: 20 * time.Millisecond})
	c := backendtest.Use(t, dev, 1<<20)
	c.Submit(c.Read(0, c.Memory(0, 512)))
	testutil.True(t, c.Channel.Close() != nil, "closed with a delayed operation")
	c.Wait(1)
}

// thin is a device that reports its space.
type thin struct{ backend.Device }

func (thin) Space() (allocated, free int64, err error) { return 4096, 8192, nil }

// TestSpace: the space reported by the wrapped storage is passed on.
func TestSpace(t *testing.T) {
	known, unknown := Delay(thin{}, DelayConfig{}), Delay(struct{ backend.Device }{}, DelayConfig{})
	n, left, err := known.(backend.SpaceReporter).Space()
	testutil.True(t, n == 4096 && left == 8192 && err == nil, "%d bytes, %d are left, %v", n, left,
		err)
	_, _, err = unknown.(backend.SpaceReporter).Space()
	testutil.True(t, err != nil, "storage that does not know its space reports it")
}

func BenchmarkPassThrough(b *testing.B) {
	backendtest.BenchmarkReads(b,
		Error(openRAM(b), ErrorConfig{Err: backend.ErrIO, OneIn: 1 << 30}), 512)
}

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
	c := backendtest.Use(t, Error(Delay(inner, delay), ErrorConfig{
		Err: backend.ErrIO, Offset: 1 << 62, Ops: []backend.Op{backend.OpRead},
	}), 1<<20)
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
	c := backendtest.Use(t, Delay(f, DelayConfig{}), 1<<20)
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
