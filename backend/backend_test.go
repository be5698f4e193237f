package backend

import (
	"errors"
	"math"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
)

func TestCheckGeometry(t *testing.T) {
	for _, tc := range []struct {
		size  int64
		block int
		ok    bool
	}{
		{512, 512, true},
		{1 << 40, 4096, true},
		{1 << 20, 64 << 10, true},
		{0, 512, false},
		{-512, 512, false},
		{513, 512, false},
		{2048, 4096, false},
		{4096, 0, false},
		{4096, 256, false},
		{4096, 520, false},
		{1 << 20, 128 << 10, false},
		{4096, -4096, false},
	} {
		if err := CheckGeometry(tc.size, tc.block); (err == nil) != tc.ok {
			t.Errorf("size %d, block size %d: %v", tc.size, tc.block, err)
		}
	}
}

func TestCheck(t *testing.T) {
	const size = 1 << 20
	segs := func(lens ...int) (l []mem.Segment) {
		for _, n := range lens {
			l = append(l, mem.Segment{B: make([]byte, n)})
		}
		return l
	}
	for _, tc := range []struct {
		op       Op
		off, len int64
		segs     []mem.Segment
		want     error
	}{
		{OpRead, 0, size, segs(size), nil},
		{OpWrite, size - 1024, 1024, segs(512, 500, 12), nil},
		{OpWrite, size, 0, nil, nil},
		{OpDiscard, 0, size, nil, nil},
		{OpFlush, -1, -1, nil, nil},
		{OpRead, 512, size, segs(size), ErrOutOfRange},
		{OpWrite, size, 512, segs(512), ErrOutOfRange},
		{OpDiscard, -512, 512, nil, ErrOutOfRange},
		{OpWriteZeroes, 0, -512, nil, ErrOutOfRange},
		{OpDiscard, math.MaxInt64 - 511, 512, nil, ErrOutOfRange},
		{OpDiscard, 512, math.MaxInt64, nil, ErrOutOfRange},
		{OpRead, 0, 1024, segs(512), ErrIO},
		{OpWrite, 0, 512, segs(512, 1), ErrIO},
	} {
		io := IO{Op: tc.op, Off: tc.off, Len: tc.len, Segs: tc.segs}
		if err := io.Check(size); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
			t.Errorf("%v of %d at %d: %v", tc.op, tc.len, tc.off, err)
		}
	}
}
