package block

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// loop makes a loop device of a new file and returns both paths.
func loop(t *testing.T, size int64, args ...string) (device, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "backing")
	testutil.Must(t, os.WriteFile(file, nil, 0o600))
	testutil.Must(t, os.Truncate(file, size))
	out, err := exec.Command("losetup", append(args, "-f", "--show", file)...).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device (root and losetup are needed): %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v: %s", err, out)
		}
	})
	return device, file
}

func mustOpen(t *testing.T, cfg Config) backend.Device {
	t.Helper()
	return testutil.Value(Open(cfg))(t)
}

func mustClose(t *testing.T, d backend.Device) {
	t.Helper()
	testutil.Check(t, d.Close())
}

func engines() []string {
	if uring.Available() != nil {
		return []string{disk.Threads}
	}
	return []string{disk.Threads, disk.IOUring}
}

func TestConformance(t *testing.T) {
	for _, engine := range engines() {
		for _, sector := range []string{"512", "4096"} {
			t.Run(engine+" "+sector, func(t *testing.T) {
				backendtest.Run(t, func(t *testing.T) backend.Device {
					device, _ := loop(t, backendtest.MinSize, "--sector-size", sector)
					return mustOpen(t, Config{Path: device, Engine: disk.Engine{Name: engine}})
				}, backendtest.Options{})
			})
		}
	}
}

// TestDevice runs the suite on the device named by $NVMF_TEST_BLOCK and destroys its content.
func TestDevice(t *testing.T) {
	path := os.Getenv("NVMF_TEST_BLOCK")
	if path == "" {
		t.Skip("NVMF_TEST_BLOCK names no device that may be overwritten")
	}
	for name, engine := range map[string]disk.Engine{
		"threads": {Name: disk.Threads}, "io_uring": {Name: disk.IOUring},
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Device {
				d := mustOpen(t, Config{Path: path, Engine: engine})
				c := backendtest.NewClient(t, d, 4096)
				c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Len: d.Info().Size})
				c.Close()
				return d
			}, backendtest.Options{})
		})
	}
}

// TestInstances: a loop device on a file that another instance of this program writes is refused,
// although it can be opened exclusively.
func TestInstances(t *testing.T) {
	device, file := loop(t, 1<<20)
	self := testutil.Value(os.ReadFile("/proc/self/comm"))(t)
	for name, want := range map[string]string{
		strings.TrimSpace(string(self)): "is in use by process %d (" +
			strings.TrimSpace(string(self)) + ") (" + file + ")",
		"other": "",
	} {
		program := filepath.Join(t.TempDir(), name)
		testutil.Must(t, os.Symlink("/bin/sh", program))
		holder := exec.Command(program, "-c", `exec 3<>"$0"; echo ready; read line; true`, file)
		in, err1 := holder.StdinPipe()
		out, err2 := holder.StdoutPipe()
		testutil.Must(t, errors.Join(err1, err2, holder.Start()))
		testutil.Check(t, testutil.Err(out.Read(make([]byte, 6))))
		d, err := Open(Config{Path: device})
		if err == nil {
			mustClose(t, d)
		}
		if want != "" {
			want = fmt.Sprintf(want, holder.Process.Pid)
		}
		testutil.True(t, (err == nil) == (want == "") &&
			(err == nil || strings.Contains(err.Error(), want)), "%s: %v, want %q", name, err, want)
		testutil.Check(t, errors.Join(in.Close(), holder.Wait()))
	}
}

// TestDescribed: the description agrees with the kernel's.
func TestDescribed(t *testing.T) {
	device, _ := loop(t, 64<<20+1536, "--sector-size", "4096")
	d := mustOpen(t, Config{Path: device})
	i := d.Info()
	testutil.True(t, i.Size == 64<<20 && i.BlockSize == 4096 && i.PhysicalBlockSize >= 4096 &&
		!i.ReadOnly && i.VolatileCache && i.Identity != "", "%+v", i)
	mustClose(t, d)
	d = mustOpen(t, Config{Path: device, ReadOnly: true})
	c := backendtest.Use(t, d, 4096)
	err := c.Do(c.Write(0, c.Memory(0, 4096)))
	testutil.True(t, errors.Is(err, backend.ErrReadOnly) && d.Info().ReadOnly,
		"a write to a read-only device: %v", err)
	c.MustDo(c.Read(0, c.Memory(0, 4096)), &backend.IO{Op: backend.OpFlush})
}

// TestSpaceComesBack: discards and zeroes that may unmap free space in the storage below the
// device.
func TestSpaceComesBack(t *testing.T) {
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			device, file := loop(t, 16<<20)
			d := mustOpen(t, Config{Path: device, Engine: disk.Engine{Name: engine}})
			if !d.Info().Discard {
				t.Skip("the loop device cannot discard")
			}
			allocated := func() int64 {
				var st unix.Stat_t
				testutil.Must(t, unix.Stat(file, &st))
				return st.Blocks << 9
			}
			c := backendtest.Use(t, d, 1<<20)
			for _, io := range []*backend.IO{
				{Op: backend.OpDiscard, Len: 16 << 20},
				{Op: backend.OpWriteZeroes, Flags: backend.Unmap, Len: 16 << 20},
			} {
				for off := int64(0); off < 16<<20; off += 1 << 20 {
					c.MustDo(c.Write(off, c.Memory(0, 1<<20)))
				}
				before := allocated()
				if c.MustDo(io); allocated() > before/4 {
					t.Errorf("%v: %d of %d bytes are still allocated", io.Op, allocated(), before)
				}
			}
		})
	}
}

// TestOpenRefuses: each error describes the problem and the fix, and Probe reports it beforehand.
func TestOpenRefuses(t *testing.T) {
	device, _ := loop(t, 1<<20)
	readOnly, _ := loop(t, 1<<20, "--read-only")
	busy := mustOpen(t, Config{Path: device})
	defer mustClose(t, busy)
	file := filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.WriteFile(file, []byte("x"), 0o600))
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "no path"},
		{Config{Path: "/dev/no-such-disk"}, "no such device"},
		{Config{Path: file}, "use backend: file"},
		{Config{Path: "/dev/null"}, "is not a block device"},
		{Config{Path: device}, "is in use: device or resource busy"},
		{Config{Path: device, ReadOnly: true}, "is in use"},
		{Config{Path: readOnly}, "read-only"},
	} {
		d, err := Open(tc.cfg)
		if err == nil {
			mustClose(t, d)
		}
		testutil.True(t, err != nil && strings.Contains(err.Error(), tc.want) &&
			strings.Contains(err.Error(), "block device "+tc.cfg.Path), "%+v: %v, want %q", tc.cfg,
			err, tc.want)
		r := Probe(tc.cfg)
		testutil.True(t, len(r.Errors) == 1 && strings.Contains(r.Errors[0].What,
			strings.TrimSuffix(tc.want, " busy")), "%+v: %+v, want %q", tc.cfg, r, tc.want)
	}
}

// TestProbe: Probe leaves a device that can be opened unchanged, and finds users of it.
func TestProbe(t *testing.T) {
	device, file := loop(t, 1<<20)
	for _, readOnly := range []bool{false, true} {
		cfg := Config{Path: device, ReadOnly: readOnly}
		r := Probe(cfg)
		testutil.True(t, len(r.Errors)+len(r.Warnings) == 0, "%+v", r)
		mustClose(t, mustOpen(t, cfg))
	}
	f := testutil.Value(os.OpenFile(file, os.O_RDWR, 0))(t)
	holder := exec.Command("sh", "-c", "read line; true") // it has the file below the device open
	holder.ExtraFiles = []*os.File{f}
	in := testutil.Value(holder.StdinPipe())(t)
	testutil.Must(t, holder.Start())
	r := Probe(Config{Path: device})
	testutil.Check(t, errors.Join(in.Close(), holder.Wait(), f.Close()))
	want := fmt.Sprintf("is in use by process %d (sh) (%s)", holder.Process.Pid, file)
	testutil.True(t, len(r.Errors) == 0 && len(r.Warnings) == 1 && r.Warnings[0].What == want,
		"%+v, want %q", r, want)
	other, _ := loop(t, 1<<20)
	if out, err := exec.Command("losetup", "-f", "--show", device).CombinedOutput(); err == nil {
		upper := strings.TrimSpace(string(out))
		r = Probe(Config{Path: device})
		if out, err := exec.Command("losetup", "-d", upper).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v: %s", err, out)
		}
		testutil.True(t, len(r.Errors) == 1 && strings.Contains(r.Errors[0].What,
			filepath.Base(upper)), "a loop device on a loop device: %+v", r)
	} else {
		t.Logf("no loop device on %s: %s", device, out)
	}
	r = Probe(Config{Path: other, Engine: disk.Engine{Name: "aio"}})
	testutil.True(t, len(r.Errors) == 1, "%+v", r)
}

// TestSysfs: a partition has the queue of its disk; zones are refused; a device's own name is its
// identity.
func TestSysfs(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"sda/queue/zoned": "host-managed\n", "sda/queue/rotational": "1\n",
		"sda/sda1/partition": "1\n", "sda/device/wwid": "naa.5000\n",
		"sda/queue/dma_alignment": "3\n", "sda/alignment_offset": "0\n",
		"sda/sda1/alignment_offset": "3584\n", // it begins at sector 63
	} {
		path := filepath.Join(dir, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testutil.Must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	for _, s := range []sysfs{sysfs(dir + "/sda"), sysfs(dir + "/sda/sda1")} {
		testutil.True(t, s.number("queue/rotational") == 1 && s.text("queue/nothing") == "",
			"%s: rotational %d", s, s.number("queue/rotational"))
		testutil.Fails(t, describe(&disk.Config{FD: -1}, s), "zones", "zones")
		testutil.Equal(t, memoryAlignment(s, 512), 4, "alignment of addresses")
	}
	for s, want := range map[string]int{"/sda": 4096, "/sda/sda1": 512, "/none": 4096} {
		got := physicalBlock(sysfs(dir+s), 4096, 512)
		testutil.True(t, got == want, "%s: physical blocks of %d bytes, want %d", s, got, want)
	}
	for s, want := range map[string]string{"/sda": "naa.5000", "/sda/sda1": "naa.5000 1"} {
		testutil.Equal(t, identity("/dev/sda", sysfs(dir+s)), want, "%s", s)
	}
	testutil.Equal(t, identity("/dev/null", sysfs(fmt.Sprint(dir, "/none"))), "/dev/null", "")
}

// TestSame: conditions under which a disk counts as the one that was offline.
func TestSame(t *testing.T) {
	named := disk.Config{
		Offset: 512, Memory: 4,
		Info: backend.Info{
			Size: 1 << 20, BlockSize: 512, PhysicalBlockSize: 4096,
			Identity: "naa.5000",
		},
	}
	unnamed := named
	unnamed.Info.Identity = "/dev/vda"
	for _, tc := range []struct {
		name   string
		old    disk.Config
		change func(*disk.Config)
		is     string
		ok     bool
	}{
		{"itself", named, func(*disk.Config) {}, "here", true},
		{"elsewhere", named, func(*disk.Config) {}, "there", true},
		{
			"of another name", named, func(c *disk.Config) { c.Info.Identity = "naa.5001" }, "here",
			false,
		},
		{"of another size", named, func(c *disk.Config) { c.Info.Size *= 2 }, "here", false},
		{"of other blocks", named, func(c *disk.Config) { c.Info.BlockSize = 4096 }, "here", false},
		{
			"of larger atoms", named, func(c *disk.Config) { c.Info.PhysicalBlockSize *= 2 },
			"here",
			false,
		},
		{"more particular", named, func(c *disk.Config) { c.Memory = 512 }, "here", false},
		{"less particular", named, func(c *disk.Config) { c.Memory = 1 }, "here", true},
		{"read-only", named, func(c *disk.Config) { c.Info.ReadOnly = true }, "here", false},
		{"without a name, in its place", unnamed, func(*disk.Config) {}, "here", true},
		{"without a name, elsewhere", unnamed, func(*disk.Config) {}, "there", false},
		{
			"that has a name now", unnamed, func(c *disk.Config) { c.Info.Identity = "naa.5000" },
			"here", false,
		},
	} {
		now := tc.old
		tc.change(&now)
		err := same(&tc.old, &now, "here", tc.is)
		testutil.True(t, (err == nil) == tc.ok && (err == nil || errors.Is(err, errOther)),
			"a disk %s: %v", tc.name, err)
	}
}

// TestResize: growth of a device is noticed. When it shrinks, ranges beyond the end are out of
// range.
func TestResize(t *testing.T) {
	path, file := loop(t, 1<<20)
	d := mustOpen(t, Config{Path: path})
	defer mustClose(t, d)
	c := backendtest.NewClient(t, d, 64<<10)
	defer c.Close()
	notified := make(chan backend.Info, 4)
	d.(backend.Changer).Notify(func() { notified <- d.Info() })
	for _, size := range []int64{2 << 20, 512 << 10} {
		testutil.Must(t, unix.Truncate(file, size))
		fd := testutil.Value(unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
		testutil.Must(t, errors.Join(unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0),
			unix.Close(fd)))
		beyond := c.Write(1<<20-4096, c.Memory(0, 4096))
		err := c.Do(beyond)
		testutil.True(t, (size >= 1<<20 || errors.Is(err, backend.ErrOutOfRange)) &&
			(size <= 1<<20 || err == nil), "%d bytes: %v", size, err)
		i := testutil.Receive(t, "the size", notified)
		testutil.True(t, i.Size == size && !i.Offline, "notified of %+v, want %d bytes", i, size)
		c.MustDo(c.Write(size-4096, c.Memory(0, 4096)))
	}
}
