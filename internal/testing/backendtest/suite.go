package backendtest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// Options describe how a device differs from others.
type Options struct {
	// Forgets: writes are not stored, and reads return zeroes.
	Forgets bool
	// ZeroCopyReads: the channels are backend.ZeroCopyReaders.
	ZeroCopyReads bool
	// ZeroCopyWrites: the channels are backend.ZeroCopyWriters, and ZeroCopyReaders as well.
	ZeroCopyWrites bool
}

// MinSize is the size that a device needs for Run, in bytes.
const MinSize = 8 << 20

type suite struct {
	open func(t *testing.T) backend.Device
	Options
}

// check is one test of the suite. Each has its own device.
type check struct {
	name string
	fn   func(t *testing.T, dev backend.Device)
}

// Run checks a device against the contract. open opens a new device of at least MinSize bytes that
// reads as zeroes. Run closes it.
func Run(t *testing.T, open func(t *testing.T) backend.Device, opts Options) {
	s := &suite{open: open, Options: opts}
	tests := []check{
		{"Info", s.info},
		{"FreshReadsZeroes", s.fresh},
		{"SizesAndSplits", s.sizes},
		{"Misaligned", s.misaligned},
		{"Boundaries", s.boundaries},
		{"Refused", s.refused},
		{"Zeroing", s.zeroing},
		{"RandomAgainstModel", s.model},
		{"ConcurrentChannels", s.concurrent},
		{"NoTornBlock", s.torn},
		{"Flush", s.flush},
		{"MoreThanFits", s.flood},
		{"PollInSmallSteps", s.smallPolls},
		{"CloseWithOutstanding", s.closeBusy},
		{"NoAllocation", s.noAlloc},
	}
	switch {
	case !opts.ZeroCopyReads:
		tests = append(tests, check{"NoZeroCopyReader", isNo[backend.ZeroCopyReader]})
	case !opts.Forgets: // otherwise nothing ever changes
		tests = append(tests, check{"ZeroCopyReadStable", s.stable})
		fallthrough
	default:
		tests = append(tests,
			check{"ZeroCopyRead", s.zeroCopyRead},
			check{"ZeroCopyReadNoTornBlock", s.zeroCopyReadTorn},
			check{"ZeroCopyReadStarvesNoWriter", s.zeroCopyReadStarve},
			check{"ZeroCopyReadNoAllocation", s.zeroCopyReadNoAlloc})
	}
	if opts.ZeroCopyWrites {
		tests = append(tests,
			check{"ZeroCopyWrite", s.zeroCopyWrite},
			check{"ZeroCopyWriteAgainstModel", s.zeroCopyWriteModel},
			check{"ZeroCopyWriteNoTornBlock", s.zeroCopyWriteTorn},
			check{"ZeroCopyWriteNoAllocation", s.zeroCopyWriteNoAlloc})
	} else {
		tests = append(tests, check{"NoZeroCopyWriter", isNo[backend.ZeroCopyWriter]})
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			before := usage()
			dev := s.open(t)
			defer func() { // also after a failure
				testutil.Equal(t, dev.Close(), nil, "close")
				if after := usage(); after != before {
					t.Errorf("memory is left:\n%s\nbefore:\n%s", after, before)
				}
			}()
			tc.fn(t, dev)
		})
	}
}

func usage() string {
	return fmt.Sprint(mem.Usage())
}

// rounds returns the number of rounds of random operations: n in make soak, half as many in make
// test.
func rounds(n int) int {
	if testutil.Soaking() {
		return n
	}
	return n / 2
}

// check compares data that was read with the data that was written.
func (s *suite) check(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if s.Forgets {
		want = make([]byte, len(want))
	}
	if !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, at, len(want), got[at], want[at])
	}
}

func (s *suite) info(t *testing.T, dev backend.Device) {
	i := dev.Info()
	testutil.Check(t, backend.CheckGeometry(i.Size, i.BlockSize))
	if i.Size < MinSize {
		t.Errorf("size %d: the suite needs %d", i.Size, MinSize)
	}
	if i.PhysicalBlockSize < i.BlockSize || i.PhysicalBlockSize%i.BlockSize != 0 {
		t.Errorf("physical block size %d does not fit block size %d", i.PhysicalBlockSize,
			i.BlockSize)
	}
	if i.OptimalIO%i.BlockSize != 0 {
		t.Errorf("optimal I/O size %d does not fit block size %d", i.OptimalIO, i.BlockSize)
	}
	testutil.True(t, i.Identity != "", "no identity")
	testutil.True(t, !i.ReadOnly, "read-only")
}

func (s *suite) fresh(t *testing.T, dev backend.Device) {
	c := NewClient(t, dev, 1<<20)
	defer c.Close()
	b := c.Memory(0, 1<<20)
	for _, off := range []int64{0, 3 << 20, dev.Info().Size - int64(len(b))} {
		fill(b, 1)
		c.MustDo(c.Read(off, b))
		if !bytes.Equal(b, make([]byte, len(b))) {
			t.Fatalf("a fresh device does not read as zeroes at %d", off)
		}
	}
}

// sizes writes and reads from one block to more than a megabyte, in segments of many shapes.
func (s *suite) sizes(t *testing.T, dev backend.Device) {
	bs := dev.Info().BlockSize
	c := NewClient(t, dev, 4<<20)
	defer c.Close()
	off := int64(bs)
	counts := []int{1, 2, 3, 7, 8, 9, 31, min(64, 2<<20/bs), min(257, 2<<20/bs), (1<<20)/bs + 1}
	for i, blocks := range slices.Compact(counts) {
		n := blocks * bs
		if off+int64(n) > dev.Info().Size {
			off = 0
		}
		for _, cuts := range [][]int{
			nil,
			{bs * (blocks / 2)},
			{4, n / 2 &^ 3, n - 4},
			{0, 0, n},
			every(n, max(n/200, 4)),
		} {
			w, r := c.Memory(0, n), c.Memory(2<<20, n)
			fill(w, uint64(i*100+len(cuts)))
			c.MustDo(c.Write(off, w, cuts...))
			fill(r, 99)
			c.MustDo(c.Read(off, r))
			s.check(t, fmt.Sprintf("written in %d segments, %d blocks at %d", len(cuts)+1, blocks,
				off), r, w)
			fill(r, 99)
			c.MustDo(c.Read(off, r, cuts...))
			s.check(t, fmt.Sprintf("read in %d segments, %d blocks at %d", len(cuts)+1, blocks,
				off), r, w)
		}
		off += int64(n)
	}
}

// every returns the multiples of step below n; step is rounded up to 4.
func every(n, step int) (cuts []int) {
	step = (step + 3) &^ 3
	for at := step; at < n; at += step {
		cuts = append(cuts, at)
	}
	return cuts
}

// misaligned uses memory at any address: in-capsule data lies after a header.
func (s *suite) misaligned(t *testing.T, dev backend.Device) {
	bs := dev.Info().BlockSize
	c := NewClient(t, dev, 4<<20)
	defer c.Close()
	for i, shift := range []int{1, 3, 8, 72, 511} {
		for _, n := range []int{bs, 8 * bs, 700 << 10 / bs * bs} {
			w, r := c.Memory(shift, n), c.Memory(2<<20+shift+1, n)
			fill(w, uint64(i))
			c.MustDo(c.Write(int64(bs), w, n/2+1))
			c.MustDo(c.Read(int64(bs), r, 1, n/3))
			s.check(t, fmt.Sprintf("%d bytes at an address that ends in %d", n, shift), r, w)
		}
	}
}

// boundaries writes the first and the last block, and blocks around multiples of a megabyte, and
// checks that neighbors are unchanged.
func (s *suite) boundaries(t *testing.T, dev backend.Device) {
	info := dev.Info()
	bs := int64(info.BlockSize)
	c := NewClient(t, dev, 1<<20)
	defer c.Close()
	for _, at := range []int64{0, 1 << 20, 2 << 20, 4 << 20, info.Size} {
		from, to := max(at-2*bs, 0), min(at+2*bs, info.Size)
		n := int(to - from)
		w, r := c.Memory(0, n), c.Memory(512<<10, n)
		fill(w, uint64(at))
		c.MustDo(c.Write(from, w))
		c.MustDo(c.Read(from, r))
		s.check(t, fmt.Sprintf("around %d", at), r, w)
		for b := from; b < to; b += bs { // one block by itself
			part := w[b-from:][:bs]
			fill(part, uint64(b))
			c.MustDo(c.Write(b, part))
			c.MustDo(c.Read(from, r))
			s.check(t, fmt.Sprintf("block %d", b/bs), r, w)
		}
	}
	// An empty range is valid.
	c.MustDo(&backend.IO{Op: backend.OpRead}, &backend.IO{Op: backend.OpWrite, Off: info.Size})
}

// refused: ranges beyond the end and other mistakes of the submitter return errors and change
// nothing.
func (s *suite) refused(t *testing.T, dev backend.Device) {
	size, bs := dev.Info().Size, int64(dev.Info().BlockSize)
	c := NewClient(t, dev, 1<<20)
	defer c.Close()
	b := c.Memory(0, int(2*bs))
	for _, op := range []backend.Op{
		backend.OpRead, backend.OpWrite, backend.OpWriteZeroes,
		backend.OpDiscard,
	} {
		for _, off := range []int64{size, size - bs, -bs, math.MaxInt64 - bs + 1} {
			fill(b, 5)
			io := &backend.IO{Op: op, Off: off, Len: 2 * bs, Segs: c.Segs(b)}
			want := append([]byte(nil), b...)
			if err := c.Do(io); !errors.Is(err, backend.ErrOutOfRange) {
				t.Errorf("%v at %d: %v, want %v", op, off, err, backend.ErrOutOfRange)
			}
			if !bytes.Equal(b, want) {
				t.Errorf("%v at %d: memory was touched", op, off)
			}
		}
	}
	for _, op := range []backend.Op{backend.OpRead, backend.OpWrite} {
		if err := c.Do(&backend.IO{Op: op, Len: 4 * bs, Segs: c.Segs(b)}); err == nil {
			t.Errorf("%v with too little memory: no error", op)
		}
	}
	r := c.Memory(512<<10, int(bs))
	c.MustDo(c.Read(size-bs, r))
	s.check(t, "the last block", r, make([]byte, bs))
}

// zeroing checks write zeroes and discard of single blocks, of ranges and of the whole device.
func (s *suite) zeroing(t *testing.T, dev backend.Device) {
	info := dev.Info()
	bs := int64(info.BlockSize)
	c := NewClient(t, dev, 2<<20)
	defer c.Close()
	type op struct {
		op    backend.Op
		flags backend.Flags
	}
	ops := []op{
		{backend.OpWriteZeroes, 0},
		{backend.OpWriteZeroes, backend.FUA},
		{backend.OpWriteZeroes, backend.Unmap},
	}
	if info.DiscardZeroes {
		ops = append(ops, op{backend.OpDiscard, 0})
	}
	window := max(16*bs, 256<<10)
	w, r := c.Memory(0, int(window)), c.Memory(1<<20, int(window))
	zeroes := make([]byte, window)
	for _, o := range ops {
		for _, rg := range [][2]int64{
			{0, bs},
			{bs, 2 * bs},
			{3 * bs, 3 * bs},
			{max(bs, 4096), 2 * max(bs, 4096)},
			{5 * bs, window - 7*bs},
			{0, window},
		} {
			at := 2<<20 - window/2 // across two megabytes
			fill(w, uint64(rg[1]))
			c.MustDo(c.Write(at, w))
			c.MustDo(&backend.IO{Op: o.op, Flags: o.flags, Off: at + rg[0], Len: rg[1]})
			clear(w[rg[0]:][:rg[1]])
			c.MustDo(c.Read(at, r))
			s.check(t, fmt.Sprintf("%v %b of %d at %d", o.op, o.flags, rg[1], rg[0]), r, w)
		}
		fill(w, 1)
		places := []int64{
			0, 1<<20 - window/2, 2 << 20, 4<<20 - window/2, 7 << 20, info.Size - window,
		}
		if testutil.Soaking() { // each device has all of these
			for at := int64(0); at+window <= MinSize; at += window {
				places = append(places, at)
			}
		}
		for _, at := range places {
			c.MustDo(c.Write(at, w))
		}
		c.MustDo(&backend.IO{Op: o.op, Flags: o.flags, Off: 0, Len: info.Size})
		for _, at := range places {
			c.MustDo(c.Read(at, r))
			s.check(t, fmt.Sprintf("%v of everything, at %d", o.op, at), r, zeroes)
		}
	}
	if !info.Discard {
		testutil.Is(t, c.Do(&backend.IO{Op: backend.OpDiscard, Len: bs}), backend.ErrUnsupported,
			"discard is not supported but")
	}
}
