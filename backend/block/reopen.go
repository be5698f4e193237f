package block

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// size returns the present size of a block device in bytes, 0 if it is offline. It does not block.
func size(fd int) (int64, error) {
	n, err := unix.IoctlGetInt(fd, unix.BLKGETSIZE64)
	return int64(n), err
}

// errOther is the error for a path that now leads to a different device.
var errOther = errors.New(
	"another disk is in its place, which is not touched; restart the target to use that one")

// reopener returns a function that opens the device of cfg again if it is the one of old.
func reopener(cfg Config, old disk.Config) func() (disk.Config, error) {
	was := place(old.FD)
	return func() (disk.Config, error) {
		dc, err := claim(cfg)
		if err != nil {
			return dc, err
		}
		if err := same(&old, &dc, was, place(dc.FD)); err != nil {
			_ = unix.Close(dc.FD)
			return dc, err
		}
		return dc, nil
	}
}

// same compares disks. One without a name (serial number, WWID) must be in the same place.
func same(old, now *disk.Config, was, is string) error {
	a, b := &old.Info, &now.Info
	switch {
	case a.Identity != b.Identity:
		return fmt.Errorf("%w: it is %q, not %q", errOther, b.Identity, a.Identity)
	case strings.HasPrefix(a.Identity, "/") && was != is: // only a path
		return fmt.Errorf("%w: neither has a serial number, and it is at %s, not %s", errOther, is,
			was)
	case a.Size != b.Size:
		return fmt.Errorf("%w: it has %d bytes, not %d", errOther, b.Size, a.Size)
	case a.BlockSize != b.BlockSize || b.PhysicalBlockSize > a.PhysicalBlockSize ||
		now.Offset > old.Offset || now.Memory > old.Memory:
		return fmt.Errorf("%w: its blocks are of another size", errOther)
	case a.ReadOnly != b.ReadOnly:
		return fmt.Errorf("%w: one of the two is read-only", errOther)
	}
	return nil
}

// place returns the location of a device in the machine: its directory in /sys.
func place(fd int) string {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return ""
	}
	path, _ := filepath.EvalSymlinks("/sys/dev/block/" + sys.DeviceNumber(st.Rdev))
	return path
}
