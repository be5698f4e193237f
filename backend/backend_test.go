package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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

// ableDevice and ableChannel have every optional ability. That they compile shows that no two
// abilities collide.
type (
	ableDevice  struct{}
	ableChannel struct{}
)

var (
	_ interface {
		Changer
		Fencer
		SpaceReporter
		Replaceable
	} = ableDevice{}
	_ interface {
		Canceler
		ZeroCopyReader
		ZeroCopyWriter
	} = ableChannel{}
)

func (ableDevice) Info() Info                           { return Info{} }
func (ableDevice) OpenChannel(Reactor) (Channel, error) { return ableChannel{}, nil }
func (ableDevice) Close() error                         { return nil }
func (ableDevice) Notify(func())                        {}
func (ableDevice) Fence() bool                          { return true }
func (ableDevice) Space() (int64, int64, error)         { return 0, 0, nil }
func (ableDevice) InPlace() error                       { return nil }

func (ableChannel) Submit([]*IO) int { return 0 }
func (ableChannel) Poll([]*IO) int   { return 0 }
func (ableChannel) Arm() bool        { return true }
func (ableChannel) Close() error     { return nil }
func (ableChannel) Cancel(*IO)       {}
func (ableChannel) StartZeroCopyRead(dst []mem.Segment, _, _ int64) ([]mem.Segment, bool) {
	return dst, false
}
func (ableChannel) EndZeroCopyRead([]mem.Segment, int64, int64) {}
func (ableChannel) WriterWaits() bool                           { return false }
func (ableChannel) StartZeroCopyWrite(dst []mem.Segment, _, _ int64) ([]mem.Segment, bool) {
	return dst, false
}
func (ableChannel) AbortZeroCopyWrite([]mem.Segment) {}

func TestReport(t *testing.T) {
	var r Report
	testutil.Check(t, r.Err())
	r.Warnf("Make room.", "%d bytes are free", 7)
	r.Errorf("Add path.", "no path is %s", "given")
	err := WithHint(fs.ErrNotExist, "Create it.")
	r.Add(err)
	r.Add(WithHint(errors.New("is what it is"), ""))
	r.Add(WithHint(fmt.Errorf("%w by a", ErrInUse), "Stop it."))
	if want := []Problem{
		{What: "no path is given", Hint: "Add path."},
		{What: "file does not exist", Hint: "Create it."},
		{What: "is what it is"},
		{What: "is in use by a", Hint: "Stop it.", InUse: true},
	}; !slices.Equal(r.Errors, want) ||
		r.Warnings[0] != (Problem{What: "7 bytes are free", Hint: "Make room."}) {
		t.Errorf("%+v", r)
	}
	if got := r.Err().Error(); got !=
		"no path is given (add path)\nfile does not exist (create it)\nis what it is\n"+
			"is in use by a (stop it)" {
		t.Error(got)
	}
	testutil.True(t, errors.Is(err, fs.ErrNotExist), "the error behind a hint is lost")
}

func TestRetry(t *testing.T) {
	var g RetryGroup
	g.Wake()
	woken := [3]int{}
	var members [3]*Retry
	for i := range members {
		members[i] = g.Join(func() { woken[i]++ })
	}
	members[0].Wait(true)
	members[0].Wait(true)
	members[2].Wait(true)
	members[2].Leave()
	testutil.True(t, g.Len() == 2 && g.Waiting(), "%d channels, waiting %v", g.Len(), g.Waiting())
	g.Wake()
	testutil.True(t, woken == [3]int{1, 0, 0} && members[0].Due() && !members[1].Due() &&
		!members[2].Due(), "woken: %v", woken)
	testutil.True(t, members[0].Take() && !members[0].Take(), "a retry is not taken once")
	testutil.True(t, members[1].Wait(true) && !members[1].Wait(true) && members[1].Wait(false),
		"Wait does not report what is new")
	members[0].Wait(false)
	g.Wake()
	testutil.True(t, !g.Waiting() && woken[0] == 1, "woken without waiting: %v", woken)
	members[0].Leave()
	members[1].Leave()
	testutil.True(t, g.Len() == 0 && !g.Waiting(), "%d channels are left, waiting %v", g.Len(),
		g.Waiting())
}

// TestRetryMissesNothing: a channel that calls Wait and then tries once more never misses a
// resource, whether it is given back before or after.
func TestRetryMissesNothing(t *testing.T) {
	const rounds = 2000
	var g RetryGroup
	wake := make(chan struct{}, 1)
	r := g.Join(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	tokens := make(chan struct{}, rounds)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds {
			tokens <- struct{}{}
			g.Wake()
		}
	})
	try := func() bool {
		select {
		case <-tokens:
			return true
		default:
			return false
		}
	}
	for range rounds {
		if try() {
			continue
		}
		for r.Wait(true); !try(); {
			<-wake
			r.Take()
		}
		r.Wait(false)
	}
	wg.Wait()
	r.Leave()
}
