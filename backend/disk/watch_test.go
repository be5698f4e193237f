package disk

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// removable is a disk that tests remove and bring back: a file that stands for a block device.
type removable struct {
	*Disk
	t       *testing.T
	out     atomic.Bool  // commands fail, and the size is 0
	size    atomic.Int64 // of the current file
	refuse  atomic.Pointer[error]
	refused chan struct{}
	log     bytes.Buffer // read after Close
	changes chan backend.Info
}

func newRemovable(t *testing.T, e Engine, volatile bool) *removable {
	p := &removable{t: t, changes: make(chan backend.Info, 10), refused: make(chan struct{}, 100)}
	p.size.Store(1 << 20)
	base := newDisk(t, 1<<20, true, e)
	cfg := base.cfg
	path := cfg.Path
	cfg.Block, cfg.Info.VolatileCache = true, volatile
	cfg.Log = slog.New(slog.NewTextHandler(&p.log, nil))
	cfg.Size = func(int) (int64, error) {
		if p.out.Load() {
			return 0, nil
		}
		return p.size.Load(), nil
	}
	cfg.Reopen = func() (Config, error) {
		if err := p.refuse.Load(); err != nil {
			p.refused <- struct{}{}
			return Config{}, *err
		}
		nc := cfg
		var err error
		nc.FD, err = unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		p.out.Store(false)
		return nc, err
	}
	d := testutil.Value(New(cfg))(t)
	d.inject = func(_ step, res int32) int32 {
		if p.out.Load() {
			return -int32(unix.EIO)
		}
		return res
	}
	p.Disk = d
	d.Notify(func() { p.changes <- d.Info() })
	return p
}

// remove takes the disk offline. It comes back when refuse is nil.
func (p *removable) remove() {
	missing := errors.New("no such device")
	p.refuse.Store(&missing)
	p.out.Store(true)
	p.CheckNow()
}

func (p *removable) change() backend.Info {
	p.t.Helper()
	return testutil.Receive(p.t, "a change", p.changes)
}

func (p *removable) close(c *backendtest.Client) {
	p.t.Helper()
	c.Close()
	mustClose(p.t, p.Disk)
}

// TestOfflineAndBack: failures while a disk is offline are not errors of the medium. When it is
// back, the channels use the new file.
func TestOfflineAndBack(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		p := newRemovable(t, e, true)
		c := backendtest.NewClient(t, p.Disk, 64<<10)
		b := c.Memory(0, 4096)
		copy(b, "before")
		c.MustDo(c.Write(0, b))
		c.MustDo(&backend.IO{Op: backend.OpFlush})
		p.remove()
		flush := &backend.IO{Op: backend.OpFlush}
		fua := c.Write(0, b)
		fua.Flags = backend.FUA
		for _, io := range []*backend.IO{
			c.Read(0, b), c.Write(0, b), fua, flush,
			{Op: backend.OpWriteZeroes, Len: 4096},
		} {
			expect(t, c, io, backend.ErrOffline)
		}
		i := p.change()
		testutil.True(t, i.Offline && !i.Degraded && i.Size == 1<<20, "offline: %+v", i)
		expect(t, c, c.Read(0, b), backend.ErrOffline)

		testutil.Receive(t, "an attempt to open the disk", p.refused)
		// A different file is put back, to show which one is used.
		testutil.Must(t, errors.Join(os.Rename(p.cfg.Path, p.cfg.Path+".old"),
			os.WriteFile(p.cfg.Path, append([]byte("after"), make([]byte, 1<<20-5)...), 0o600)))
		p.refuse.Store(nil)
		i = p.change()
		testutil.True(t, !i.Offline && !i.Degraded, "back: %+v", i)
		c.MustDo(c.Read(0, b))
		testutil.True(t, bytes.HasPrefix(b, []byte("after")), "read %q", b[:8])
		copy(b, "later")
		c.MustDo(c.Write(4096, b), c.Write(8192, c.Memory(512, 4096))) // in place, and by a worker
		c.MustDo(&backend.IO{Op: backend.OpFlush})
		data, err := os.ReadFile(p.cfg.Path)
		testutil.True(t, err == nil && bytes.HasPrefix(data[4096:], []byte("later")),
			"written %q, %v", data[4096:4104], err)
		p.close(c)
		for _, want := range []string{
			"a disk is offline", "a disk that is offline cannot be opened again",
			"a disk is back",
		} {
			n := strings.Count(p.log.String(), "msg=\""+want+"\"")
			testutil.True(t, n == 1, "%q is logged %d times:\n%s", want, n, &p.log)
		}
	})
}

// TestOfflineWithItsCache: with a volatile cache, writes that no flush has covered are lost, and
// the disk stays degraded. Without such a cache, or with FUA, nothing is lost.
func TestOfflineWithItsCache(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		for _, tc := range []struct {
			name     string
			volatile bool
			flags    backend.Flags
			lost     bool
		}{
			{"volatile", true, 0, true},
			{"write through", false, 0, false},
			{"FUA", true, backend.FUA, false},
		} {
			t.Run(tc.name, func(t *testing.T) {
				p := newRemovable(t, e, tc.volatile)
				c := backendtest.NewClient(t, p.Disk, 64<<10)
				w := c.Write(0, c.Memory(0, 4096))
				w.Flags = tc.flags
				c.MustDo(w)
				p.remove()
				i := p.change()
				testutil.True(t, i.Offline && i.Degraded == tc.lost, "offline: %+v", i)
				p.refuse.Store(nil)
				p.CheckNow()
				i = p.change()
				testutil.True(t, !i.Offline && i.Degraded == tc.lost, "back: %+v", i)
				var want error
				if tc.lost {
					want = backend.ErrDegraded
				}
				expect(t, c, &backend.IO{Op: backend.OpFlush}, want)
				expect(t, c, c.Write(0, c.Memory(0, 4096)), want)
				expect(t, c, c.Read(0, c.Memory(0, 4096)), nil)
				p.close(c)
			})
		}
	})
}

// TestFlushWhileOffline: a flush of a disk that has just gone offline fails for good if it had
// writes to cover.
func TestFlushWhileOffline(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		for _, dirty := range []bool{false, true} {
			p := newRemovable(t, e, true)
			c := backendtest.NewClient(t, p.Disk, 64<<10)
			if dirty {
				c.MustDo(c.Write(0, c.Memory(0, 4096)))
			}
			missing := errors.New("missing")
			p.refuse.Store(&missing)
			p.out.Store(true) // and the watcher has not checked yet
			want := map[bool]error{false: backend.ErrOffline, true: backend.ErrDegraded}[dirty]
			expect(t, c, &backend.IO{Op: backend.OpFlush}, want)
			i := p.change()
			testutil.True(t, i.Offline && i.Degraded == dirty, "dirty %v: %+v", dirty, i)
			p.close(c)
		}
	})
}

// TestSmallerThanItWas: errors beyond the end of a disk that shrank are out of range. Other errors
// are unchanged.
func TestSmallerThanItWas(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		p := newRemovable(t, e, true)
		c := backendtest.NewClient(t, p.Disk, 64<<10)
		inject := p.inject
		p.inject = func(s step, res int32) int32 {
			if s != stepSync {
				return -int32(unix.ENOSPC) // the kernel's error beyond the end
			}
			return inject(s, res)
		}
		expect(t, c, c.Write(1<<20-4096, c.Memory(0, 4096)), backend.ErrNoSpace)
		p.size.Store(512 << 10)
		expect(t, c, c.Write(1<<20-4096, c.Memory(0, 4096)), backend.ErrOutOfRange)
		i := p.change()
		testutil.True(t, !i.Offline && i.Size == 512<<10, "%+v", i)
		expect(t, c, c.Write(0, c.Memory(0, 4096)), backend.ErrNoSpace)
		p.close(c)
	})
}
