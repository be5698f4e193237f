package block

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
		i := <-notified
		testutil.True(t, i.Size == size && !i.Offline, "notified of %+v, want %d bytes", i, size)
		c.MustDo(c.Write(size-4096, c.Memory(0, 4096)))
	}
}
