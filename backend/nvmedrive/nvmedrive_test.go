package nvmedrive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/block"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/passthrutest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/uring"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// newDrive makes a drive in memory that is large enough for the suite.
func newDrive(lbads uint8) *passthrutest.Drive {
	return passthrutest.New(backendtest.MinSize>>lbads, lbads)
}

var free = limits{1 << 20, 4 << 20, 4 << 20}

// on opens a drive in memory, as open does for a real one.
func on(t *testing.T, fake *passthrutest.Drive, l limits, engine string,
	changes ...func(*disk.Config),
) backend.Device {
	t.Helper()
	id := testutil.Value(identify(fake, passthrutest.NSID))(t)
	bs := 1 << fake.Namespace.Format().LBADS
	fd := testutil.Value(unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0))(t)
	dc := disk.Config{Path: "drive", FD: fd, Engine: disk.Engine{Name: engine}, Info: backend.Info{
		Size: int64(fake.Namespace.NSZE) * int64(bs), BlockSize: bs, PhysicalBlockSize: 4096,
		Identity: "drive",
	}}
	testutil.Must(t, newDriver(fake, id, l, &dc))
	drv := dc.Driver.(*driver)
	fake.Limit = int(drv.limits.transfer)
	if engine == disk.IOUring {
		dc.Driver = ringed{drv}
	}
	for _, change := range changes {
		change(&dc)
	}
	return testutil.Value(disk.New(dc))(t)
}

// ringed passes commands through a ring to /dev/null, which accepts any since Linux 6.4, after the
// drive has executed them.
type ringed struct{ *driver }

func (r ringed) Start(ring *uring.Ring, f uring.File, c *disk.Command, then uring.Completer) bool {
	if !r.driver.Start(ring, f, c, then) {
		return false
	}
	if res := r.Do(c); res != 0 {
		panic(fmt.Sprint("result ", res))
	}
	return true
}

// engines returns the engines that can be used here without a drive.
func engines() []string {
	list := []string{disk.Threads}
	fd, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return list
	}
	defer func() { _ = unix.Close(fd) }()
	res, err := uring.Once(fd,
		func(r *uring.Ring, f uring.File,
			c uring.Completer,
		) bool {
			return r.StartCommand(f, 0, nil, nil, c)
		})
	if err == nil && res == 0 {
		list = append(list, disk.IOUring)
	}
	return list
}

func TestConformance(t *testing.T) {
	for _, tc := range []struct {
		name   string
		lbads  uint8
		limits limits
		change func(d *passthrutest.Drive)
	}{
		{"512", 9, free, func(*passthrutest.Drive) {}},
		{"4096", 12, free, func(*passthrutest.Drive) {}},
		{"small pieces", 9, limits{1536, 8192, 1024}, func(*passthrutest.Drive) {}},
		{
			"nothing but reads and writes", 9, free,
			func(d *passthrutest.Drive) { d.Controller.ONCS, d.Controller.MDTS = 0, 1 },
		},
	} {
		for _, engine := range engines() {
			t.Run(tc.name+" "+engine, func(t *testing.T) {
				backendtest.Run(t, func(t *testing.T) backend.Device {
					fake := newDrive(tc.lbads)
					tc.change(fake)
					return on(t, fake, tc.limits, engine)
				}, backendtest.Options{})
			})
		}
	}
}

// TestDevice runs the suite on a namespace of this machine and destroys its content; the lab has
// one.
func TestDevice(t *testing.T) {
	path := os.Getenv("NVMF_TEST_NVME")
	if path == "" {
		t.Skip("NVMF_TEST_NVME does not name an NVMe namespace to overwrite")
	}
	for _, engine := range []string{disk.Threads, disk.IOUring} {
		t.Run(engine, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Device {
				d := testutil.Value(
					Open(block.Config{Path: path, Engine: disk.Engine{Name: engine}}))(t)
				c := backendtest.NewClient(t, d, 1<<20)
				c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Len: d.Info().Size})
				c.Close()
				return d
			}, backendtest.Options{})
		})
	}
}

// TestCommands: the commands that the drive receives for each operation.
func TestCommands(t *testing.T) {
	for _, deallocates := range []bool{true, false} {
		fake := newDrive(12)
		if !deallocates {
			fake.Namespace.DLFEAT = nvme.DLFEATWriteZeroes // deallocated blocks are undefined
		}
		var seen []string
		fake.Fault = func(_ uintptr, sqe *nvme.SQE) (nvme.Status, syscall.Errno) {
			seen = append(seen,
				fmt.Sprintf("%02X ns %d: %d+%d %08X", uint8(sqe.Opcode()), sqe.NSID(), sqe.SLBA(),
					sqe.NLB(), sqe.RW().Flags()))
			return 0, 0
		}
		d := on(t, fake, limits{16 << 10, 1 << 20, 1 << 20}, disk.Threads)
		seen = nil
		c := backendtest.NewClient(t, d, 1<<20)
		write := c.Write(40<<12, c.Memory(0, 20<<10))
		write.Flags = backend.FUA
		for _, io := range []*backend.IO{
			c.Read(1<<12, c.Memory(0, 8<<10)), write,
			{Op: backend.OpFlush},
			{Op: backend.OpWriteZeroes, Off: 7 << 12, Len: 4096},
			{Op: backend.OpWriteZeroes, Off: 7 << 12, Len: 4096, Flags: backend.Unmap},
			{Op: backend.OpDiscard, Off: 1 << 20, Len: 2 << 20},
		} {
			c.MustDo(io)
		}
		want := []string{
			"02 ns 3: 1+2 00000000", "01 ns 3: 40+4 40000000", "01 ns 3: 44+1 40000000",
			"00 ns 3: 0+1 00000000",
			"08 ns 3: 7+1 00000000", "08 ns 3: 7+1 02000000",
		}
		if !deallocates {
			want[5] = "08 ns 3: 7+1 00000000"
		}
		dsm := 0
		for _, s := range seen {
			if strings.HasPrefix(s, "09 ") {
				dsm++
			}
		}
		got := seen[:len(want)]
		testutil.True(t, strings.Join(got, "\n") == strings.Join(want, "\n") && dsm == 2,
			"deallocates %v: the drive saw\n%s", deallocates, strings.Join(seen, "\n"))
		c.Close()
		testutil.Check(t, d.Close())
	}
}

// TestFailures: each status becomes an error of the right kind that names the status.
func TestFailures(t *testing.T) {
	for st, want := range map[nvme.Status]error{
		nvme.UnrecoveredReadError: backend.ErrIO, nvme.InternalError: backend.ErrIO,
		0x287: backend.ErrIO, 0x7C0: backend.ErrIO,
		nvme.LBAOutOfRange: backend.ErrOutOfRange, nvme.CapacityExceeded: backend.ErrNoSpace,
		nvme.NamespaceNotReady:       backend.ErrOffline,
		nvme.NamespaceWriteProtected: backend.ErrReadOnly,
		nvme.CommandInterrupted:      backend.ErrAborted, nvme.HostPathingError: backend.ErrOffline,
		nvme.InvalidOpcode: backend.ErrUnsupported,
	} {
		fake := newDrive(12)
		fake.Fault = func(_ uintptr, sqe *nvme.SQE) (nvme.Status, syscall.Errno) {
			if sqe.Opcode() == nvme.NVMRead && sqe.SLBA() == 9 {
				return st | nvme.DNR, 0
			}
			return 0, 0
		}
		d := on(t, fake, free, disk.Threads)
		c := backendtest.NewClient(t, d, 1<<20)
		err := c.Do(c.Read(9<<12, c.Memory(0, 4096)))
		testutil.True(t, errors.Is(err, want) &&
			(want == backend.ErrUnsupported || errors.Is(err, st|nvme.DNR)) &&
			strings.Contains(err.Error(), "drive: read at 36864"), "%v: %v", st, err)
		c.MustDo(c.Read(8<<12, c.Memory(0, 4096)))
		c.Close()
		testutil.Check(t, d.Close())
	}
}

// TestFlushFails: a failed flush stays; a disk on a drive without Write Zeroes writes zeroes as
// data.
func TestFlushFails(t *testing.T) {
	fake := newDrive(9)
	fake.Fault = func(_ uintptr, sqe *nvme.SQE) (nvme.Status, syscall.Errno) {
		switch sqe.Opcode() {
		case nvme.NVMWriteZeroes:
			return nvme.InvalidOpcode | nvme.DNR, 0
		case nvme.NVMFlush:
			return nvme.WriteFault, 0
		}
		return 0, 0
	}
	d := on(t, fake, free, disk.Threads)
	c := backendtest.Use(t, d, 1<<20)
	b := c.Memory(0, 4096)
	copy(b, "old")
	c.MustDo(c.Write(512, b))
	c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Off: 512, Len: 4096})
	c.MustDo(c.Read(512, b))
	testutil.True(t, b[0] == 0 && fake.Count(nvme.NVMWrite) >= 2, "%q, %d writes", b[:3],
		fake.Count(nvme.NVMWrite))
	for range 2 {
		err := c.Do(&backend.IO{Op: backend.OpFlush})
		testutil.True(t, errors.Is(err, backend.ErrDegraded) && errors.Is(err, nvme.WriteFault),
			"%v", err)
	}
	testutil.Is(t, c.Do(c.Write(0, b)), backend.ErrDegraded, "a write after that")
}

// TestFlushNotCarriedOut: a flush that the drive interrupts fails, and may be repeated. With
// another refusal, accepted data may be lost.
func TestFlushNotCarriedOut(t *testing.T) {
	for st, lost := range map[nvme.Status]bool{
		nvme.CommandInterrupted: false, nvme.AbortRequested: false,
		nvme.CapacityExceeded: true, nvme.NamespaceWriteProtected: true,
	} {
		fake, left := newDrive(9), 1
		fake.Fault = func(_ uintptr, sqe *nvme.SQE) (nvme.Status, syscall.Errno) {
			if sqe.Opcode() == nvme.NVMFlush && left > 0 {
				left--
				return st, 0
			}
			return 0, 0
		}
		d := on(t, fake, free, disk.Threads)
		c := backendtest.NewClient(t, d, 1<<20)
		c.MustDo(c.Write(0, c.Memory(0, 512)))
		err := c.Do(&backend.IO{Op: backend.OpFlush})
		again := c.Do(&backend.IO{Op: backend.OpFlush})
		testutil.True(t, errors.Is(err, st) && errors.Is(err, backend.ErrDegraded) == lost &&
			(again != nil) == lost, "%v: %v, and again %v", st, err, again)
		c.Close()
		testutil.Check(t, d.Close())
	}
}

// TestCauseOfOneCommand: the status of a command does not explain the failure of a later one.
func TestCauseOfOneCommand(t *testing.T) {
	fake := newDrive(9)
	fake.Fault = func(_ uintptr, sqe *nvme.SQE) (nvme.Status, syscall.Errno) {
		switch sqe.Opcode() {
		case nvme.NVMFlush:
			return 0, unix.EIO
		case nvme.NVMRead:
			return nvme.AbortRequested, 0
		}
		return 0, 0
	}
	var gone atomic.Bool
	d := on(t, fake, free, disk.Threads, func(dc *disk.Config) {
		size := dc.Info.Size
		dc.Size = func(int) (int64, error) {
			if gone.Load() {
				return 0, nil
			}
			return size, nil
		}
	})
	c := backendtest.Use(t, d, 1<<20)
	gone.Store(true)
	testutil.Is(t, c.Do(c.Read(0, c.Memory(0, 512))), backend.ErrOffline, "a read")
	gone.Store(false)
	var err error
	testutil.Until(t, "the drive is back", func() bool {
		err = c.Do(&backend.IO{Op: backend.OpFlush})
		return !errors.Is(err, backend.ErrOffline)
	})
	testutil.Is(t, err, backend.ErrDegraded, "a flush")
}

// TestRefusals: each error describes the problem and the fix.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		want   string
		change func(d *passthrutest.Drive)
	}{
		{"8 bytes of metadata", func(d *passthrutest.Drive) {
			d.Namespace.FLBAS, d.Namespace.LBAF[17] = 1<<5|1, nvme.LBAFormat{MS: 8, LBADS: 12}
		}},
		{"protection information", func(d *passthrutest.Drive) { d.Namespace.DPS = 1 }},
		{"not active", func(d *passthrutest.Drive) { d.Namespace = nvme.IdentifyNamespace{} }},
		{"2^17", func(d *passthrutest.Drive) { d.Namespace.LBAF[0].LBADS = 17 }},
		{"DULBE", func(d *passthrutest.Drive) { d.Features = map[uint8]uint32{5: 1<<16 | 100} }},
		{"CAP_SYS_ADMIN", func(d *passthrutest.Drive) { d.Fault = errno(unix.EACCES) }},
		{"use backend: block", func(d *passthrutest.Drive) { d.Fault = errno(unix.ENOTTY) }},
		{"Invalid Namespace", func(d *passthrutest.Drive) {
			d.Fault = func(uintptr, *nvme.SQE) (nvme.Status, syscall.Errno) {
				return nvme.InvalidNamespaceOrFormat, 0
			}
		}},
	} {
		d := newDrive(9)
		tc.change(d)
		_, err := identify(d, passthrutest.NSID)
		testutil.True(t, err != nil && strings.Contains(refused(err).Error(), tc.want), "%q: %v",
			tc.want, err)
	}
}

func errno(e syscall.Errno) func(uintptr, *nvme.SQE) (nvme.Status, syscall.Errno) {
	return func(uintptr, *nvme.SQE) (nvme.Status, syscall.Errno) { return 0, e }
}

func TestDescribe(t *testing.T) {
	d := newDrive(9)
	id := testutil.Value(identify(d, passthrutest.NSID))(t)
	kernel := backend.Info{
		Size: int64(id.ns.NSZE) << 9, BlockSize: 512, PhysicalBlockSize: 4096,
		DiscardZeroes: true,
	}
	for _, tc := range []struct {
		what     string
		change   func()
		l, want  limits
		physical int
		volatile bool
	}{
		{"as it is", func() {}, free, free, 512, true},
		{
			"MDTS", func() { id.ctrl.MDTS, id.ctrl.VWC = 3, 0 }, free,
			limits{32 << 10, free.zeroes, free.discard},
			512, false,
		},
		{"not in blocks", func() {}, limits{5000, 513, 1025}, limits{4608, 512, 1024}, 512, false},
		{
			"NLB", func() { id.ctrl.MDTS = 0 },
			limits{1 << 40, 1 << 40, 1 << 40},
			limits{32 << 20, 32 << 20, 1 << 30},
			512, false,
		},
		{"AWUPF", func() { id.ctrl.AWUPF = 3 }, free, free, 2048, false},
		{
			"NAWUPF", func() { id.ns.NSFEAT, id.ns.NAWUPF = nvme.NSFEATAtomics, 254 }, free, free,
			4096, false,
		},
		{"NABSPF", func() { id.ns.NABSPF = 1 }, free, free, 1024, false},
		{"NABO", func() { id.ns.NABO = 1 }, free, free, 512, false},
	} {
		tc.change()
		dc := disk.Config{Info: kernel}
		if err := newDriver(d, id, tc.l, &dc); err != nil {
			t.Errorf("%s: %v", tc.what, err)
			continue
		}
		i := dc.Info
		testutil.True(t, dc.Driver.(*driver).limits == tc.want &&
			i.PhysicalBlockSize == tc.physical && i.VolatileCache == tc.volatile && i.Discard &&
			!i.DiscardZeroes, "%s: %+v, %+v", tc.what, dc.Driver, i)
	}
	kernel.Size /= 2
	testutil.Fails(t, newDriver(d, id, free, &disk.Config{Info: kernel}), "rescan", "another size")
}

// TestNamed: the devices of a namespace are in one directory, numbered by controller or by
// subsystem.
func TestNamed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"nvme5/ng5n2", "nvme5/nvme0n2/nvme0n2p1", "nvme5/ng5n1", "nvme5/nvme0n1", "nvme5/nvme0c5n2",
		"nvme-subsys1/ng1n12", "nvme-subsys1/nvme1n12",
		"nvme7/nvme7n1", "nvme8/ng8n1",
	} {
		testutil.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	for _, row := range testutil.Rows(t, "named") {
		var tc struct{ place, kind, want string }
		row.Scan(&tc.place, &tc.kind, &tc.want)
		n, err := named(filepath.Join(dir, tc.place), tc.kind)
		got := n.Char + " " + n.Block
		if err != nil {
			got = err.Error()
		} else if n.sysfs != filepath.Join(dir, filepath.Dir(tc.place), filepath.Base(n.Block)) {
			t.Errorf("%s: its queue is in %s", tc.place, n.sysfs)
		}
		testutil.Equal(t, got, tc.want, "%s", tc.place)
	}
}

// TestOpenRefuses: Open refuses a path that is not an NVMe namespace, and Probe reports it
// beforehand.
func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		"": "no path", "/dev/ng999n9": "no such device", file: "use backend: file",
		t.TempDir(): "is not a device", os.DevNull: "not a namespace of an NVMe drive",
	} {
		_, err := Open(block.Config{Path: path})
		testutil.True(t, err != nil && strings.Contains(err.Error(), want) &&
			strings.HasPrefix(err.Error(), "NVMe namespace "+path), "%q: %v", path, err)
		r := Probe(block.Config{Path: path})
		testutil.True(t, len(r.Errors) == 1 && strings.Contains(r.Errors[0].What, want), "%q: %+v",
			path, r)
	}
}
