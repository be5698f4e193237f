package nvmedrive

import (
	"errors"
	"fmt"
	"os"
	"strings"
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
func on(t *testing.T, fake *passthrutest.Drive, l limits, engine string) backend.Device {
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
	d := testutil.Value(disk.New(dc))(t)
	return d
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
	c := backendtest.NewClient(t, d, 1<<20)
	b := c.Memory(0, 4096)
	copy(b, "old")
	c.MustDo(c.Write(512, b))
	c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Off: 512, Len: 4096})
	c.MustDo(c.Read(512, b))
	if b[0] != 0 || fake.Count(nvme.NVMWrite) < 2 {
		t.Errorf("%q, %d writes", b[:3], fake.Count(nvme.NVMWrite))
	}
	for range 2 {
		err := c.Do(&backend.IO{Op: backend.OpFlush})
		testutil.True(t, errors.Is(err, backend.ErrDegraded) && errors.Is(err, nvme.WriteFault),
			"%v", err)
	}
	testutil.Is(t, c.Do(c.Write(0, b)), backend.ErrDegraded, "a write after that")
	c.Close()
	testutil.Check(t, d.Close())
}
