package file

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/backendtest"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// pretendDAX makes all files count as on DAX until the end of the test. On tmpfs mappings are the
// medium itself, too.
func pretendDAX(tb testing.TB) {
	real := isDAX
	tb.Cleanup(func() { isDAX = real })
	isDAX = func(int) (bool, error) { return true, nil }
}

func onDAX(tb testing.TB) Config {
	tb.Helper()
	pretendDAX(tb)
	return Config{
		Path: filepath.Join(shm(tb), "disk.img"), Size: backendtest.MinSize, BlockSize: 4096,
	}
}

func TestDAXConformance(t *testing.T) {
	engines := []string{disk.Threads}
	if uring.Available() == nil {
		engines = append(engines, disk.IOUring)
	}
	for _, engine := range engines {
		for _, blockSize := range []int{512, 4096, 32 << 10} {
			t.Run(fmt.Sprintf("%s %d", engine, blockSize), func(t *testing.T) {
				backendtest.Run(t, func(t *testing.T) backend.Device {
					cfg := onDAX(t)
					cfg.BlockSize, cfg.Engine.Name = blockSize, engine
					return mustOpen(t, cfg)
				}, backendtest.Options{ZeroCopyReads: true})
			})
		}
	}
}

// TestDAXDetected: the file system decides whether a file is mapped, which is logged.
func TestDAXDetected(t *testing.T) {
	dir := shm(t)
	for _, tc := range []struct {
		yes  bool
		err  error  // of statx
		want string // in the log
	}{
		{},
		{yes: true, want: "is mapped"},
		{err: errors.New("no answer"), want: "no answer"},
	} {
		real := isDAX
		isDAX = func(int) (bool, error) { return tc.yes, tc.err }
		var log bytes.Buffer
		path := filepath.Join(dir, "disk.img")
		d := mustOpen(t, Config{
			Path: path, Size: 1 << 20, BlockSize: 4096,
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		isDAX = real
		c := backendtest.NewClient(t, d, 4096)
		if _, ok := c.Channel.(backend.ZeroCopyReader); ok != tc.yes {
			t.Errorf("%+v: zero-copy reads: %v", tc, ok)
		}
		c.Close()
		mustClose(t, d)
		if said := log.String(); !strings.Contains(said, tc.want) ||
			tc.want == "" && strings.Contains(said, "mapped") {
			t.Errorf("%+v: %s", tc, said)
		}
		_ = os.Remove(path)
	}
}

// TestDAXReadOnly: a read-only file can be read without a copy, too.
func TestDAXReadOnly(t *testing.T) {
	cfg := onDAX(t)
	want := bytes.Repeat([]byte("read-only"), 1<<20/9+1)[:1<<20]
	testutil.Must(t, os.WriteFile(cfg.Path, want, 0o400))
	cfg.Size, cfg.ReadOnly = 0, true
	d := mustOpen(t, cfg)
	c := backendtest.NewClient(t, d, 4096)
	l := c.Channel.(backend.ZeroCopyReader)
	segs, ok := l.StartZeroCopyRead(nil, 4096, 8192)
	if !ok || len(segs) != 1 || !segs[0].File || !bytes.Equal(segs[0].B, want[4096:][:8192]) {
		t.Errorf("started %v, %d segments", ok, len(segs))
	}
	l.EndZeroCopyRead(segs, 4096, 8192)
	expect(t, c, c.Write(0, c.Memory(0, 4096)), backend.ErrReadOnly)
	c.Close()
	mustClose(t, d)
}

// TestDAXTruncated: memory that is being read when the file is truncated differs from data, and
// once the disk has noticed, zero-copy reads of it are refused. What comes back can be read, but
// not what the file has grown by.
func TestDAXTruncated(t *testing.T) {
	cfg := onDAX(t)
	d := mustOpen(t, cfg)
	c := backendtest.NewClient(t, d, 1<<20)
	l := c.Channel.(backend.ZeroCopyReader)
	notified := make(chan backend.Info, 10)
	d.(backend.Changer).Notify(func() { notified <- d.Info() })
	c.MustDo(c.Write(0, c.Memory(0, 1<<20)))
	segs, ok := l.StartZeroCopyRead(nil, 0, 1<<20)
	if !ok {
		t.Fatal("the zero-copy read is refused")
	}
	for _, size := range []int64{512 << 10, 4 << 20, cfg.Size + 4096} {
		testutil.Must(t, os.Truncate(cfg.Path, size))
		own := c.Segs(c.Memory(0, 1<<20))
		if ok := mem.CopyFile(own, segs); ok != (size > 1<<20) {
			t.Errorf("with %d bytes: it can be copied: %v", size, ok)
		}
		d.(checker).CheckSoon()
		if info := testutil.Receive(t, "a notification", notified); info.Size != size {
			t.Fatalf("notified of %+v", info)
		}
		if some, ok := l.StartZeroCopyRead(nil, size-4096, 4096); ok != (size <= cfg.Size) {
			t.Errorf("with %d bytes the last ones can be read: %v", size, ok)
		} else if ok {
			l.EndZeroCopyRead(some, size-4096, 4096)
		}
		if _, ok := l.StartZeroCopyRead(nil, size-4096, 8192); ok {
			t.Errorf("with %d bytes more can be read", size)
		}
		if size > 1<<20 {
			expect(t, c, c.Write(size-4096, c.Memory(0, 4096)), nil)
		}
		expect(t, c, c.Read(size-4096, c.Memory(0, 4096)), nil)
		expect(t, c, c.Read(size-4096, c.Memory(0, 8192)), backend.ErrOutOfRange)
	}
	l.EndZeroCopyRead(segs, 0, 1<<20)
	d.(backend.Changer).Notify(nil)
	c.Close()
	mustClose(t, d)
}

// TestDAXWaits: of more changes than the disk takes, only those wait whose blocks are being read.
// They complete when the read ends, or when they are canceled.
func TestDAXWaits(t *testing.T) {
	d := mustOpen(t, onDAX(t))
	c := backendtest.NewClient(t, d, 8192)
	l := c.Channel.(backend.ZeroCopyReader)
	c.MustDo(c.Write(0, c.Memory(0, 4096)))
	segs, ok := l.StartZeroCopyRead(nil, 0, 4096)
	if !ok {
		t.Fatal("the zero-copy read is refused")
	}
	b := c.Memory(4096, 4096)
	b[0] = 1
	blocked, canceled := c.Write(0, b), c.Write(0, c.Memory(0, 4096))
	ios := []*backend.IO{}
	for i := range 3000 {
		ios = append(ios, c.Write(int64(1<<20+i%256*4096), b))
	}
	ios[5], ios[6], ios[2500] = blocked, canceled, &backend.IO{Op: backend.OpDiscard, Len: 1 << 20}
	finished := c.Submit(ios...)
	finished = append(finished, c.Wait(len(ios)-3-len(finished))...)
	for _, io := range finished {
		if io == blocked || io == canceled || io == ios[2500] {
			t.Errorf("a %v of what is being read is done: %v", io.Op, io.Err)
		}
	}
	testutil.Equal(t, segs[0].B[0], 0, "what is being read has changed")
	if l.Close() == nil {
		t.Error("the channel closed with a zero-copy read outstanding")
	}
	c.Channel.(backend.Canceler).Cancel(canceled)
	if done := c.Wait(1); done[0] != canceled || !errors.Is(canceled.Err, backend.ErrAborted) {
		t.Errorf("canceled: %v", canceled.Err)
	}
	if _, ok := l.StartZeroCopyRead(nil, 0, 4096); ok {
		t.Error("a zero-copy read started while a change waits")
	}
	l.EndZeroCopyRead(segs, 0, 4096)
	c.Wait(2)
	if blocked.Err != nil || ios[2500].Err != nil {
		t.Error(blocked.Err, ios[2500].Err)
	}
	segs, ok = l.StartZeroCopyRead(nil, 0, 4096)
	if !ok {
		t.Fatal("the zero-copy read is refused once all is over")
	}
	l.EndZeroCopyRead(segs, 0, 4096)
	c.Close()
	mustClose(t, d)
}

// TestDAXRanges: wherever a range lies and however long it is, each of its stripes is counted once.
func TestDAXRanges(t *testing.T) {
	var ranges daxRanges
	ranges.init(512)
	const stripe = minStripe
	for _, r := range [][2]int64{
		{0, 0},
		{0, -512},
		{0, 512},
		{stripe - 512, 1024},
		{stripes*stripe - 512, 1024},
		{512, stripes * stripe},
		{0, 1 << 50},
		{-512, 1024},
		{1 << 62, 4096},
	} {
		first, count := ranges.span(r[0], r[1])
		if ok, _ := ranges.addReader(r[0], r[1]); !ok {
			t.Fatalf("%v: refused", r)
		}
		if clear := ranges.addChange(r[0], r[1]); clear != (count == 0) {
			t.Errorf("%v: a change meets readers: %v", r, !clear)
		}
		taken := int64(0)
		for i := range ranges.table {
			switch ranges.table[i].Load() {
			case oneReader + oneChange:
				taken++
			case 0:
			default:
				t.Fatalf("%v: a stripe is %#x", r, ranges.table[i].Load())
			}
		}
		if taken != count || count > 0 && ranges.at(first).Load() == 0 {
			t.Errorf("%v: %d of %d stripes are taken", r, taken, count)
		}
		if ok, last := ranges.addReader(r[0], r[1]); ok != (count == 0) || last {
			t.Errorf("%v: not refused although it changes", r)
		}
		if last := ranges.removeReader(r[0], r[1]); last != (count > 0) ||
			!ranges.clear(r[0], r[1]) {
			t.Errorf("%v: the last read has ended: %v", r, last)
		}
		ranges.removeChange(r[0], r[1])
		for i := range ranges.table {
			testutil.MustEqual(t, ranges.table[i].Load(), 0, "%v: something is left", r)
		}
	}
}

// BenchmarkDAXRead starts and ends zero-copy reads.
func BenchmarkDAXRead(b *testing.B) {
	for _, size := range []int64{4 << 10, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dK", size>>10), func(b *testing.B) {
			d := mustOpen(b, onDAX(b))
			c := backendtest.NewClient(b, d, 4096)
			l := c.Channel.(backend.ZeroCopyReader)
			segs := make([]mem.Segment, 0, 8)
			b.ReportAllocs()
			for n := int64(0); b.Loop(); n++ {
				var ok bool
				off := n * size & (backendtest.MinSize - 1)
				if segs, ok = l.StartZeroCopyRead(segs[:0], off, size); !ok {
					b.Fatal("the zero-copy read is refused")
				}
				l.EndZeroCopyRead(segs, off, size)
			}
			c.Close()
			mustClose(b, d)
		})
	}
}
