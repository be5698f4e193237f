package disk

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// newDisk makes a disk of a new file of size bytes, with O_DIRECT if direct.
func newDisk(t testing.TB, size int64, direct bool, e Engine) *Disk {
	t.Helper()
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Engine: e, Info: backend.Info{
		Size: size, BlockSize: 4096, PhysicalBlockSize: 4096, VolatileCache: true, Discard: true,
		DiscardZeroes: true, Identity: "test",
	}}
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC
	if direct {
		flags |= unix.O_DIRECT
		cfg.Offset, cfg.Memory = 4096, 4096
	}
	var err error
	if cfg.FD, err = unix.Open(cfg.Path, flags, 0o600); err == nil {
		err = unix.Ftruncate(cfg.FD, size)
	}
	testutil.Must(t, err)
	return testutil.Value(New(cfg))(t)
}

func mustClose(tb testing.TB, dev backend.Device) {
	tb.Helper()
	testutil.Check(tb, dev.Close())
}

// each runs fn with every engine that works here.
func each(t *testing.T, fn func(t *testing.T, e Engine)) {
	t.Run("threads", func(t *testing.T) { fn(t, Engine{Name: Threads}) })
	t.Run("io_uring", func(t *testing.T) {
		if err := uring.Available(); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			t.Skipf("io_uring is missing: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		fn(t, Engine{Name: IOUring})
	})
}

func expect(t *testing.T, c *backendtest.Client, io *backend.IO, want error) {
	t.Helper()
	if err := c.Do(io); !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%v: %v, want %v", io.Op, err, want)
	}
}

// TestNothingSupported: without discards, ZERO_RANGE and commands for block devices everything else
// works.
func TestNothingSupported(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		backendtest.Run(t, func(t *testing.T) backend.Device {
			d := newDisk(t, backendtest.MinSize, true, e)
			d.cfg.Info.Discard, d.cfg.Info.DiscardZeroes = false, false
			d.inject = func(s step, res int32) int32 {
				if s == stepZeroRange {
					return -int32(unix.EOPNOTSUPP)
				}
				return res
			}
			return d
		}, backendtest.Options{})
	})
}

// TestOneWorker: steps wait for the only worker.
func TestOneWorker(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Device {
		d := newDisk(t, backendtest.MinSize, true, Engine{Name: Threads})
		d.maxWorkers = 1
		return d
	}, backendtest.Options{})
}

// TestShortTransfers: a transfer that ends early, or has to be repeated, continues where it ended.
func TestShortTransfers(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		backendtest.Run(t, func(t *testing.T) backend.Device {
			d := newDisk(t, backendtest.MinSize, true, e)
			var n atomic.Int64
			d.inject = func(_ step, res int32) int32 {
				switch k := n.Add(1); {
				case res < 0:
				case res >= 2 && k%3 == 0:
					return res / 2
				case k%7 == 0:
					return -int32(unix.EAGAIN)
				case k%11 == 0:
					return -int32(unix.EINTR)
				}
				return res
			}
			return d
		}, backendtest.Options{})
	})
}

// failing makes flushes fail while fail is set, and counts them.
type failing struct {
	fail  atomic.Bool
	syncs atomic.Int64
}

func (f *failing) inject(s step, res int32) int32 {
	if s == stepSync {
		f.syncs.Add(1)
		if f.fail.Load() {
			return -int32(unix.EIO)
		}
	}
	return res
}

// TestFailedFlushStays: after a failed flush no flush and no write succeeds until the device is
// opened again.
func TestFailedFlushStays(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		var f failing
		var log bytes.Buffer
		d := newDisk(t, 1<<20, true, e)
		d.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		d.inject = f.inject
		c := backendtest.Use(t, d, 8192)
		b := c.Memory(0, 4096)
		flush := &backend.IO{Op: backend.OpFlush}
		c.MustDo(flush)
		c.MustDo(c.Write(0, b))
		f.fail.Store(true)
		expect(t, c, flush, backend.ErrIO)
		f.fail.Store(false)
		expect(t, c, flush, backend.ErrIO)
		expect(t, c, c.Write(0, b), backend.ErrIO)
		expect(t, c, &backend.IO{Op: backend.OpWriteZeroes, Len: 4096}, backend.ErrIO)
		expect(t, c, &backend.IO{Op: backend.OpDiscard, Len: 4096}, backend.ErrIO)
		testutil.Fails(t, c.Do(flush), "until the namespace is opened again", "unclear")
		expect(t, c, c.Read(0, b), nil)
		testutil.True(t, strings.Count(log.String(), "takes no more writes") == 1, "log: %q",
			log.String())
	})
}

// TestFailedFUAStays: the same for a durable write through O_DIRECT, unless it failed for lack of
// space.
func TestFailedFUAStays(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		d := newDisk(t, 1<<20, true, e)
		var result atomic.Int32
		d.inject = func(s step, res int32) int32 {
			if r := result.Load(); r != 0 && s == stepTransfer {
				return r
			}
			return res
		}
		c := backendtest.Use(t, d, 8192)
		w := c.Write(0, c.Memory(0, 4096))
		w.Flags = backend.FUA
		c.MustDo(w)
		result.Store(-int32(unix.ENOSPC))
		expect(t, c, w, backend.ErrNoSpace)
		result.Store(0)
		c.MustDo(w)
		result.Store(-int32(unix.EIO))
		expect(t, c, w, backend.ErrIO)
		result.Store(0)
		expect(t, c, w, backend.ErrIO)
		expect(t, c, &backend.IO{Op: backend.OpFlush}, backend.ErrIO)
	})
}

// TestFUAIsDurable: through the page cache FUA flushes, and its failure is permanent.
func TestFUAIsDurable(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		var f failing
		d := newDisk(t, 1<<20, false, e)
		d.inject = f.inject
		c := backendtest.Use(t, d, 8192)
		fua := func(op backend.Op) *backend.IO {
			return &backend.IO{
				Op: op, Flags: backend.FUA, Len: 4096,
				Segs: c.Segs(c.Memory(0, 4096)),
			}
		}
		c.MustDo(fua(backend.OpWrite))
		c.MustDo(fua(backend.OpWriteZeroes))
		testutil.Equal(t, f.syncs.Load(), 2, "flushes for 2 commands with FUA")
		f.fail.Store(true)
		expect(t, c, fua(backend.OpWrite), backend.ErrIO)
		f.fail.Store(false)
		expect(t, c, fua(backend.OpWrite), backend.ErrIO)
	})
}

// TestFlushesShare: while a flush is in progress it may not cover later writes. Flushes that come
// then, on any channel, share the next one and its failure.
func TestFlushesShare(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		var f failing
		d := newDisk(t, 1<<20, true, e)
		d.inject = func(s step, res int32) int32 {
			d.sync.mu.Lock()
			defer d.sync.mu.Unlock()
			testutil.True(t, s != stepSync || d.sync.busy,
				"a flush could have begun beside another")
			return f.inject(s, res)
		}
		c := backendtest.Use(t, d, 4096)
		flushes := make([]*backend.IO, 10)
		for i := range flushes {
			flushes[i] = &backend.IO{Op: backend.OpFlush}
		}
		c.MustDo(flushes...)
		n := f.syncs.Load()
		testutil.True(t, n == 2, "%d calls of fdatasync for %d flushes at once", n, len(flushes))
		var wg sync.WaitGroup
		for range 3 {
			other := backendtest.NewClient(t, d, 4096)
			wg.Go(func() {
				defer other.Close()
				for range 50 {
					other.MustDo(&backend.IO{Op: backend.OpFlush}, &backend.IO{Op: backend.OpFlush})
				}
			})
		}
		wg.Wait()
		f.fail.Store(true)
		finished := c.Submit(flushes...)
		for _, io := range append(finished, c.Wait(len(flushes)-len(finished))...) {
			testutil.True(t, errors.Is(io.Err, backend.ErrIO),
				"a flush that shares a failed one: %v", io.Err)
		}
	})
}

// TestErrno: the errors of system calls are classified, and name the operation and the place.
func TestErrno(t *testing.T) {
	d := &Disk{cfg: Config{Path: "/some/disk.img"}}
	for errno, want := range map[syscall.Errno]error{
		unix.ENOSPC: backend.ErrNoSpace, unix.EDQUOT: backend.ErrNoSpace,
		unix.EFBIG: backend.ErrNoSpace, unix.EIO: backend.ErrIO,
		unix.EROFS: backend.ErrReadOnly, unix.ENODEV: backend.ErrOffline,
		unix.EOPNOTSUPP: backend.ErrUnsupported, unix.EINVAL: backend.ErrIO,
	} {
		err := d.failure(backend.OpWrite, 8192, errno)
		testutil.True(t, errors.Is(err, want) && errors.Is(err, errno) &&
			strings.Contains(err.Error(), "/some/disk.img: write at 8192: "), "%v: %v", errno, err)
	}
}

// TestUnregistered: memory that the kernel refuses to register is used unregistered, with one
// warning for all disks.
func TestUnregistered(t *testing.T) {
	if err := uring.Available(); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread() // the ring belongs to it
	defer runtime.UnlockOSThread()
	defer func() { unregisteredOnce = sync.Once{} }()
	unregisteredOnce = sync.Once{}
	var log bytes.Buffer
	for range 2 {
		d := newDisk(t, 1<<20, true, Engine{Name: IOUring})
		d.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		region := testutil.Value(mem.Map("test", 4096))(t)
		eventFD := testutil.Value(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
		// The kernel would have to write to it.
		testutil.Must(t, unix.Mprotect(region.Bytes(), unix.PROT_READ))
		c := testutil.Value(
			d.OpenChannel(backend.Reactor{Wake: func() {}, EventFD: eventFD, Memory: region}))(t)
		io := &backend.IO{Op: backend.OpWrite, Len: 4096, Segs: []mem.Segment{{B: region.Bytes()}}}
		c.Submit([]*backend.IO{io})
		var done [1]*backend.IO
		testutil.Until(t, "the end of the write", func() bool { return c.Poll(done[:]) > 0 })
		testutil.Check(t, errors.Join(io.Err, c.Close(), unix.Close(eventFD), region.Unmap()))
		mustClose(t, d)
	}
	n := strings.Count(log.String(), "cannot be registered")
	testutil.True(t, n == 1 && strings.Contains(log.String(), "level=WARN"), "%d lines: %s", n,
		log.String())
}

// TestFaultOffset: an error after a partial transfer has the position where it ended.
func TestFaultOffset(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		d := newDisk(t, backendtest.MinSize, true, e)
		steps := 0
		d.inject = func(_ step, res int32) int32 {
			if steps++; steps == 1 {
				return 8192
			}
			return -int32(unix.EIO)
		}
		c := backendtest.Use(t, d, 64<<10)
		io := c.Read(16384, c.Memory(0, 16384))
		expect(t, c, io, backend.ErrIO)
		var at *backend.Fault
		testutil.True(t, errors.As(io.Err, &at) && at.Off == 16384+8192, "%v, %+v", io.Err, at)
		expect(t, c, io, backend.ErrIO)
		testutil.True(t, !errors.As(io.Err, &at), "nothing was read, and yet: %+v", at)
	})
}

// TestTurn: a call of Submit or Poll handles a bounded number of ops, even if many have come and
// many are granted at once, and all of them complete.
func TestTurn(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		const most = turnSteps/opSteps + 1
		d := newDisk(t, nUnits*minUnit, false, e)
		c := backendtest.Use(t, d, 4096)
		ch := c.Channel.(*channel)
		elsewhere := newActor()
		all := elsewhere.op(backend.OpWrite, 0, nUnits*minUnit)
		testutil.MustTrue(t, d.ranges.lock(all), "the range is not free")
		ios := make([]*backend.IO, maxOutstanding)
		for i := range ios {
			ios[i] = &backend.IO{Op: backend.OpWriteZeroes, Off: int64(i) * minUnit, Len: minUnit}
		}
		c.Lock()
		n := ch.Submit(ios)
		testutil.MustTrue(t, n == len(ios), "%d of %d were taken", n, len(ios))
		waiting := func() (n int) {
			ch.inbox.Take(&ch.arrived)
			for range ch.arrived.All() {
				n++
			}
			return n
		}
		buf := make([]*backend.IO, 16)
		done := 0
		poll := func(what string) (turns int) {
			for left := waiting(); left > 0; turns++ {
				testutil.MustTrue(t, !ch.Arm(), "%s: the reactor may sleep with %d ops to handle",
					what, left)
				done += ch.Poll(buf)
				now := waiting()
				testutil.MustTrue(t, left-now <= most, "%s: a poll handles %d ops", what, left-now)
				left = now
			}
			return turns
		}
		n = poll("begin")
		testutil.True(t, n >= len(ios)/most-1, "%d ops began in %d polls", len(ios), n)
		d.ranges.unlock(all)
		n = waiting()
		testutil.MustTrue(t, n == len(ios), "%d of %d ops are granted", n, len(ios))
		poll("granted")
		for done < len(ios) {
			n := ch.Poll(buf)
			if done += n; n == 0 && ch.Arm() {
				c.Sleep()
			}
		}
		d.ranges.mustBeFree(t)
	})
}

// TestCachedTransfers: the ring transfers a long IO through the page cache in pieces.
func TestCachedTransfers(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		if e.Name == Threads {
			t.Skip("other threads copy")
		}
		d := newDisk(t, 1<<20, false, e)
		var longest atomic.Int64
		d.inject = func(s step, res int32) int32 {
			if s == stepTransfer {
				longest.Store(max(longest.Load(), int64(res)))
			}
			return res
		}
		c := backendtest.Use(t, d, 1<<20)
		c.MustDo(c.Write(0, c.Memory(0, 1<<20)))
		c.MustDo(c.Read(0, c.Memory(0, 1<<20)))
		n := longest.Load()
		testutil.True(t, n > 0 && n <= cachedMost, "%d bytes in a transfer", n)
	})
}

// TestWaitingTransfers: reads that have waited for their range are copied in turns of the reactor.
func TestWaitingTransfers(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		if e.Name == Threads {
			t.Skip("other threads copy")
		}
		d := newDisk(t, 1<<20, false, e)
		c := backendtest.Use(t, d, 1<<20)
		all := newActor().op(backend.OpWrite, 0, 1<<20)
		testutil.MustTrue(t, d.ranges.lock(all), "the range is not free")
		var ios []*backend.IO
		for range 32 {
			ios = append(ios, c.Read(0, c.Memory(0, 1<<20)))
		}
		c.Submit(ios...)
		copied, turn, ch := 0, new(backend.Turn), c.Channel.(*channel)
		d.inject = func(_ step, res int32) int32 { copied += int(res); return res }
		ch.turn = turn
		d.ranges.unlock(all)
		buf := make([]*backend.IO, len(ios))
		for turns, done := 1, 0; done < len(ios); turns++ {
			turn.Left = 2 * cachedMost
			done += ch.Poll(buf)
			testutil.MustTrue(t, copied <= turns*2*cachedMost, "%d bytes in %d turns", copied,
				turns)
		}
	})
}

// TestCancelWaiting: IOs are canceled while they wait for a unit, follow the gate, or wait for
// their channel to begin them. Each ends once, when its turn comes, and later IOs go on.
func TestCancelWaiting(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		for third := range 2 { // with 1 the gate is canceled, too
			cancelWaiting(t, e, func(i int) bool { return i%3 != third })
		}
	})
}

func cancelWaiting(t *testing.T, e Engine, canceled func(i int) bool) {
	d := newDisk(t, nUnits*minUnit, false, e)
	c := backendtest.Use(t, d, 4096)
	elsewhere := newActor()
	all := elsewhere.op(backend.OpWrite, 0, nUnits*minUnit)
	testutil.MustTrue(t, d.ranges.lock(all), "the range is not free")
	ios := []*backend.IO{{Op: backend.OpWriteZeroes, Len: nUnits * minUnit}} // the gate
	for i := range 8 * tellBatch {
		ios = append(ios, &backend.IO{
			Op: backend.OpWriteZeroes, Off: int64(i%4) * minUnit, Len: minUnit,
		})
	}
	c.Submit(ios...)
	ch := c.Channel.(*channel)
	var events [granted + 1]int
	for o := range ch.arrived.All() {
		events[o.event]++
	}
	followers := 0
	for range d.ranges.gate.Load().followers.All() {
		followers++
	}
	testutil.MustTrue(t, events[begun] > tellBatch && followers > tellBatch,
		"%d are to begin, %d follow", events[begun], followers)
	for i, io := range ios {
		if canceled(i) {
			ch.Cancel(io)
		}
	}
	d.ranges.unlock(all)
	_ = c.Do()
	for i, io := range ios {
		testutil.MustTrue(t, errors.Is(io.Err, backend.ErrAborted) == canceled(i), "IO %d: %v", i,
			io.Err)
	}
	d.ranges.mustBeFree(t)
}

// TestCloseChannel: a channel closes while a worker wakes the reactor, and the disk after that.
func TestCloseChannel(t *testing.T) {
	d := newDisk(t, 1<<20, false, Engine{Name: Threads})
	waking, woken := make(chan struct{}), make(chan struct{})
	c := testutil.Value(d.OpenChannel(backend.Reactor{Wake: func() {
		close(waking)
		<-woken
	}}))(t)
	io := &backend.IO{Op: backend.OpRead, Len: 512, Segs: []mem.Segment{{B: make([]byte, 512)}}}
	c.Submit([]*backend.IO{io})
	<-waking
	var done [1]*backend.IO
	testutil.MustTrue(t, c.Poll(done[:]) == 1 && io.Err == nil, "the read is not done: %v", io.Err)
	closed := make(chan error, 2)
	go func() { closed <- c.Close() }()
	testutil.Check(t, testutil.Receive(t, "the end of Close", closed))
	go func() { closed <- d.Close() }()
	testutil.Until(t, "the channel is closed", func() bool { return d.channels.Load() == 0 })
	testutil.True(t, len(closed) == 0, "the disk does not wait for the worker")
	close(woken)
	testutil.Check(t, testutil.Receive(t, "the end of Close", closed))
}

// TestCancel: a canceled read of a disk that does not answer completes, and a write that waits
// after it is not even started.
func TestCancel(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		if e.Name == Threads {
			t.Skip("threads cannot cancel a system call in progress")
		}
		var p [2]int
		testutil.Must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
		d := testutil.Value(New(Config{
			Path: "pipe", FD: p[0], Engine: e,
			Info: backend.Info{Size: 1 << 20, BlockSize: 4096, PhysicalBlockSize: 4096},
		}))(t)
		c := backendtest.NewClient(t, d, 64<<10)
		read, write := c.Read(0, c.Memory(0, 4096)), c.Write(0, c.Memory(4096, 4096))
		flush := &backend.IO{Op: backend.OpFlush}
		c.Submit(read, write)
		testutil.MustEqual(t, c.Channel.Poll(make([]*backend.IO, 2)), 0, "an empty pipe was read")
		for _, io := range []*backend.IO{flush, write, read} { // the device does not have the first
			c.Channel.(backend.Canceler).Cancel(io)
		}
		c.Wait(2)
		for _, io := range []*backend.IO{read, write} {
			testutil.True(t, errors.Is(io.Err, backend.ErrAborted), "%v: %v", io.Op, io.Err)
		}
		testutil.Value(unix.Write(p[1], make([]byte, 4096)))(t)
		c.MustDo(c.Read(0, c.Memory(0, 4096))) // the op can be used again
		c.Close()
		mustClose(t, d)
		testutil.Check(t, unix.Close(p[1]))
	})
}

// TestFallsBack: where io_uring is forbidden, threads are used, with one warning for all disks,
// unless io_uring is configured. Probe reports it beforehand.
func TestFallsBack(t *testing.T) {
	old := available
	defer func() { available, warnOnce = old, sync.Once{} }()
	available = func() error { return unix.EPERM }
	warnOnce = sync.Once{}
	var log bytes.Buffer
	for range 3 {
		f := testutil.Value(os.Create(filepath.Join(t.TempDir(), "f")))(t)
		defer func() { _ = f.Close() }()
		d, err := New(Config{
			FD: int(f.Fd()), Info: backend.Info{BlockSize: 512},
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		testutil.True(t, err == nil && !d.uring, "%v, io_uring %v", err, d.uring)
		e := Engine{Name: IOUring}
		testutil.Is(t, testutil.Err(New(Config{Info: backend.Info{BlockSize: 512}, Engine: e})),
			unix.EPERM, "engine io_uring where that is forbidden")
		var r backend.Report
		(&Engine{}).Probe(&r)
		if e.Probe(&r); len(r.Errors) != 1 || !strings.Contains(r.Errors[0].What, "io_uring") {
			t.Errorf("%+v", r)
		}
	}
	n := strings.Count(log.String(), "\n")
	testutil.True(t, n == 1 && strings.Contains(log.String(), "level=WARN"), "%d lines: %s", n,
		log.String())
}

// TestTell: each of many followers is told once, and no call tells more than tellBatch.
func TestTell(t *testing.T) {
	const followers = 1000
	err := errors.New("the flush failed")
	a := newActor()
	o := a.op(backend.OpFlush, 0, 0)
	o.err = err
	for range followers {
		f := a.op(backend.OpFlush, 0, 0)
		o.followers.Push(f, &f.node)
	}
	told := 0
	for o != nil {
		o.tell(shared)
		a.c.inbox.Take(&a.c.arrived)
		n := 0
		o = nil
		for f := a.c.arrived.Pop(); f != nil; f = a.c.arrived.Pop() {
			testutil.MustTrue(t, f.event == shared && f.err == err, "event %d, %v", f.event, f.err)
			n++
			o = f // the last one has the others
		}
		if told += n; n > tellBatch {
			t.Fatalf("one call tells %d", n)
		}
	}
	testutil.True(t, told == followers, "%d of %d were told", told, followers)
}
