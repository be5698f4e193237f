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
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// pretendDAX has files be on DAX until the end of the test. On tmpfs mappings are the medium
// itself, too.
func pretendDAX(tb testing.TB) {
	real := isDAX
	tb.Cleanup(func() { isDAX = real })
	isDAX = func(int) (bool, error) { return true, nil }
}

func onDAX(tb testing.TB) Config {
	tb.Helper()
	pretendDAX(tb)
	return Config{
		Path: filepath.Join(shm(tb), "disk.img"), Size: backendtest.MinSize,
		BlockSize: 4096, DAX: On,
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
				}, backendtest.Options{Lends: true})
			})
		}
	}
}

// TestDAXSetting: what is configured decides, and with auto the file system; who asks for DAX and
// does not get it learns how.
func TestDAXSetting(t *testing.T) {
	dir := shm(t)
	for _, tc := range []struct {
		dax  string
		yes  bool
		err  error  // of statx
		want string // the error, or what is logged
		lend bool
	}{
		{dax: Auto},
		{dax: "", yes: true, want: "is mapped", lend: true},
		{dax: Auto, yes: true, want: "is mapped", lend: true},
		{dax: Auto, err: errors.New("no answer"), want: "no answer"},
		{dax: On, yes: true, want: "is mapped", lend: true},
		{dax: On, want: "mounted with -o dax"},
		{dax: On, err: errors.New("no answer"), want: "no answer"},
		{dax: Off, yes: true},
		{dax: "maybe", want: `dax "maybe" is not known`},
	} {
		real := isDAX
		isDAX = func(int) (bool, error) { return tc.yes, tc.err }
		var log bytes.Buffer
		path := filepath.Join(dir, "disk.img")
		d, err := Open(Config{
			Path: path, Size: 1 << 20, BlockSize: 4096, DAX: tc.dax,
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		isDAX = real
		if err == nil {
			c := backendtest.NewClient(t, d, 4096)
			if _, lends := c.Channel.(backend.ZeroCopyReader); lends != tc.lend {
				t.Errorf("%+v: lends %v", tc, lends)
			}
			c.Close()
			mustClose(t, d)
		}
		if fails := tc.dax == On && !tc.lend || tc.dax == "maybe"; fails != (err != nil) {
			t.Errorf("%+v: %v", tc, err)
		}
		if said := fmt.Sprint(err) + log.String(); !strings.Contains(said, tc.want) ||
			tc.want == "" && strings.Contains(said, "mapped") {
			t.Errorf("%+v: %s", tc, said)
		}
		_ = os.Remove(path)
	}
}

// TestDAXReadOnly: a file that may only be read is lent, too.
func TestDAXReadOnly(t *testing.T) {
	cfg := onDAX(t)
	want := bytes.Repeat([]byte("read-only"), 1<<20/9+1)[:1<<20]
	if err := os.WriteFile(cfg.Path, want, 0o400); err != nil {
		t.Fatal(err)
	}
	cfg.Size, cfg.ReadOnly = 0, true
	d := mustOpen(t, cfg)
	c := backendtest.NewClient(t, d, 4096)
	l := c.Channel.(backend.ZeroCopyReader)
	segs, ok := l.StartZeroCopyRead(nil, 4096, 8192)
	if !ok || len(segs) != 1 || !segs[0].File || !bytes.Equal(segs[0].B, want[4096:][:8192]) {
		t.Errorf("lent %v, %d segments", ok, len(segs))
	}
	l.EndZeroCopyRead(segs, 4096, 8192)
	expect(t, c, c.Write(0, c.Memory(0, 4096)), backend.ErrReadOnly)
	c.Close()
	mustClose(t, d)
}

// TestDAXTruncated: what is on loan when the file is cut off can be told from data, and once that
// is known it is not lent; what comes back, or is new, is.
func TestDAXTruncated(t *testing.T) {
	cfg := onDAX(t)
	d := mustOpen(t, cfg)
	c := backendtest.NewClient(t, d, 1<<20)
	l := c.Channel.(backend.ZeroCopyReader)
	told := make(chan backend.Info, 10)
	d.(backend.Changer).Notify(func() { told <- d.Info() })
	c.MustDo(c.Write(0, c.Memory(0, 1<<20)))
	segs, ok := l.StartZeroCopyRead(nil, 0, 1<<20)
	if !ok {
		t.Fatal("nothing is lent")
	}
	for _, size := range []int64{512 << 10, 4 << 20, cfg.Size + 4096} {
		if err := os.Truncate(cfg.Path, size); err != nil {
			t.Fatal(err)
		}
		own := c.Segs(c.Memory(0, 1<<20))
		if ok := mem.CopyFile(own, segs); ok != (size > 1<<20) {
			t.Errorf("with %d bytes: a loan can be copied: %v", size, ok)
		}
		if info := <-told; info.Size != size {
			t.Fatalf("told %+v", info)
		}
		if some, ok := l.StartZeroCopyRead(nil, size-4096, 4096); ok != (size <= cfg.Size) {
			t.Errorf("with %d bytes the last ones are lent: %v", size, ok)
		} else if ok {
			l.EndZeroCopyRead(some, size-4096, 4096)
		}
		if _, ok := l.StartZeroCopyRead(nil, size-4096, 8192); ok {
			t.Errorf("with %d bytes more is lent", size)
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

// TestDAXWaits: of more changes than the disk takes, with some among them whose blocks are on loan,
// those wait alone; they end when the loan is back, or when nobody wants them any more.
func TestDAXWaits(t *testing.T) {
	d := mustOpen(t, onDAX(t))
	c := backendtest.NewClient(t, d, 8192)
	l := c.Channel.(backend.ZeroCopyReader)
	c.MustDo(c.Write(0, c.Memory(0, 4096)))
	segs, ok := l.StartZeroCopyRead(nil, 0, 4096)
	if !ok {
		t.Fatal("nothing is lent")
	}
	b := c.Memory(4096, 4096)
	b[0] = 1
	held, unwanted := c.Write(0, b), c.Write(0, c.Memory(0, 4096))
	ios := []*backend.IO{}
	for i := range 3000 {
		ios = append(ios, c.Write(int64(1<<20+i%256*4096), b))
	}
	ios[5], ios[6], ios[2500] = held, unwanted, &backend.IO{Op: backend.OpDiscard, Len: 1 << 20}
	finished := c.Submit(ios...)
	finished = append(finished, c.Wait(len(ios)-3-len(finished))...)
	for _, io := range finished {
		if io == held || io == unwanted || io == ios[2500] {
			t.Errorf("a %v of what is on loan is done: %v", io.Op, io.Err)
		}
	}
	if segs[0].B[0] != 0 {
		t.Error("what is on loan has changed")
	}
	if l.Close() == nil {
		t.Error("the channel closed with a loan out")
	}
	c.Channel.(backend.Canceler).Cancel(unwanted)
	if done := c.Wait(1); done[0] != unwanted || !errors.Is(unwanted.Err, backend.ErrAborted) {
		t.Errorf("canceled: %v", unwanted.Err)
	}
	if _, ok := l.StartZeroCopyRead(nil, 0, 4096); ok {
		t.Error("a block is lent while a change waits")
	}
	l.EndZeroCopyRead(segs, 0, 4096)
	c.Wait(2)
	if held.Err != nil || ios[2500].Err != nil {
		t.Error(held.Err, ios[2500].Err)
	}
	segs, ok = l.StartZeroCopyRead(nil, 0, 4096)
	if !ok {
		t.Fatal("nothing is lent once all is over")
	}
	l.EndZeroCopyRead(segs, 0, 4096)
	c.Close()
	mustClose(t, d)
}

// TestFenceSpans: wherever a range lies and however long it is, each of its stripes is taken once
// and given back.
func TestFenceSpans(t *testing.T) {
	var f fence
	f.init(512)
	const stripe = leastStripe
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
		first, count := f.span(r[0], r[1])
		if ok, _ := f.lend(r[0], r[1]); !ok {
			t.Fatalf("%v: not lent", r)
		}
		if clear := f.announce(r[0], r[1]); clear != (count == 0) {
			t.Errorf("%v: a change meets loans: %v", r, !clear)
		}
		taken := int64(0)
		for i := range f.table {
			switch f.table[i].Load() {
			case oneLoan + oneChange:
				taken++
			case 0:
			default:
				t.Fatalf("%v: a stripe is %#x", r, f.table[i].Load())
			}
		}
		if taken != count || count > 0 && f.at(first).Load() == 0 {
			t.Errorf("%v: %d of %d stripes are taken", r, taken, count)
		}
		if ok, ended := f.lend(r[0], r[1]); ok != (count == 0) || ended {
			t.Errorf("%v: lent although it changes", r)
		}
		if ended := f.giveBack(r[0], r[1]); ended != (count > 0) || !f.clear(r[0], r[1]) {
			t.Errorf("%v: the last loan is back: %v", r, ended)
		}
		f.over(r[0], r[1])
		for i := range f.table {
			if f.table[i].Load() != 0 {
				t.Fatalf("%v: something is left", r)
			}
		}
	}
}

// BenchmarkDAXLend lends and returns what a read takes.
func BenchmarkDAXLend(b *testing.B) {
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
					b.Fatal("nothing is lent")
				}
				l.EndZeroCopyRead(segs, off, size)
			}
			c.Close()
			mustClose(b, d)
		})
	}
}
