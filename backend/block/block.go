// Package block implements storage on a whole disk or a partition. It opens the device exclusively
// and reads its description from the kernel. Package disk does the rest.
package block

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Config describes a block device.
type Config struct {
	// Path is the path of a block device, preferably below /dev/disk/by-id, where names are stable.
	Path string
	// ReadOnly opens for reading, exclusively all the same: data could change meanwhile.
	ReadOnly bool
	// Engine makes the system calls.
	Engine disk.Engine
	// Log is for warnings; nil for none.
	Log *slog.Logger
}

// Open opens the device exclusively: it is not mounted, swap, or part of another device.
func Open(cfg Config) (backend.Device, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("block device %s: %w", cfg.Path, err)
	}
	return d, nil
}

func open(cfg Config) (*disk.Disk, error) {
	dc, err := claim(cfg)
	if err != nil {
		return nil, err
	}
	dc.Size, dc.Reopen = size, reopener(cfg, dc)
	var d *disk.Disk
	if err = disk.CheckInstances(cfg.Path); err == nil {
		d, err = disk.New(dc)
	}
	if err != nil {
		_ = unix.Close(dc.FD)
	}
	return d, err
}

// Claim opens a device as Open does and returns the kernel's description of it, for a package that
// accesses it by other means. The caller closes FD.
func Claim(cfg Config) (disk.Config, error) {
	dc, err := claim(cfg)
	if err != nil {
		return dc, fmt.Errorf("block device %s: %w", cfg.Path, err)
	}
	dc.Size = size
	return dc, nil
}

func claim(cfg Config) (disk.Config, error) {
	mode := unix.O_RDWR
	if cfg.ReadOnly {
		mode = unix.O_RDONLY
	}
	dc, err := attach(cfg, mode)
	if err == nil && dc.Info.ReadOnly && !cfg.ReadOnly {
		return dc, errors.Join(errReadOnly, unix.Close(dc.FD))
	}
	dc.Info.ReadOnly = cfg.ReadOnly
	return dc, err
}

var errReadOnly = backend.WithHint(errors.New("is read-only"),
	"Make the namespace read_only, or the device writable: blockdev --setrw.")

// attach opens a device exclusively and describes it.
func attach(cfg Config, mode int) (dc disk.Config, err error) {
	if cfg.Path == "" {
		return dc, errors.New("no path is given")
	}
	st, err := stat(cfg.Path)
	if err != nil {
		return dc, err
	}
	fd, err := unix.Open(cfg.Path, mode|unix.O_EXCL|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return dc, explain(err, cfg.ReadOnly)
	}
	sysfs := sysfs("/sys/dev/block/" + sys.DeviceNumber(st.Rdev))
	dc = disk.Config{Path: cfg.Path, FD: fd, Block: true, Engine: cfg.Engine, Log: cfg.Log}
	if err := describe(&dc, sysfs); err != nil {
		return dc, errors.Join(err, unix.Close(fd))
	}
	return dc, nil
}

// stat rejects files that are not devices before an open, which may have effects.
func stat(path string) (st unix.Stat_t, err error) {
	if err = unix.Stat(path, &st); err != nil {
		return st, disk.Unreachable(err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return st, nil
	case unix.S_IFREG:
		return st, errors.New("is a regular file, not a block device; use backend: file")
	}
	return st, errors.New("is not a block device")
}

// explain describes an error of open(2) or access(2), with a hint.
func explain(err error, readOnly bool) error {
	hint := ""
	switch err {
	case unix.EBUSY:
		err = fmt.Errorf("%w: %w", backend.ErrInUse, err)
		hint = "\"nvmf-target disks\" shows its users; unmount it, or stop them."
	case unix.EACCES, unix.EPERM:
		err = fmt.Errorf("cannot be opened: %w", err)
		hint = "Give the user that runs the target access to it, for instance by the group disk"
		if !readOnly {
			hint += ", or make the namespace read_only"
		}
		hint += "."
	case unix.EROFS:
		err = fmt.Errorf("is read-only: %w", err)
		hint = "Make the namespace read_only."
	case unix.ENOMEDIUM:
		err = fmt.Errorf("has no medium: %w", err)
	case unix.ENXIO, unix.ENODEV:
		err = fmt.Errorf("there is no device with this name: %w", err)
	default:
		err = fmt.Errorf("cannot be opened: %w", err)
	}
	return backend.WithHint(err, hint)
}

// describe asks the kernel for the properties of the device.
func describe(d *disk.Config, dev sysfs) error {
	if z := dev.text("queue/zoned"); z == "host-managed" {
		return errors.New(
			"has host-managed zones, which take no random writes; it cannot be exported")
	}
	size, err := unix.Seek(d.FD, 0, unix.SEEK_END)
	if err != nil {
		return fmt.Errorf("find its end: %w", err)
	}
	logical, err := unix.IoctlGetUint32(d.FD, unix.BLKSSZGET)
	if err != nil {
		return fmt.Errorf("ioctl(BLKSSZGET): %w", err)
	}
	physical, err := unix.IoctlGetUint32(d.FD, unix.BLKPBSZGET)
	if err != nil {
		return fmt.Errorf("ioctl(BLKPBSZGET): %w", err)
	}
	readOnly, err := unix.IoctlGetUint32(d.FD, unix.BLKROGET)
	if err != nil {
		return fmt.Errorf("ioctl(BLKROGET): %w", err)
	}
	if size == 0 {
		return fmt.Errorf("has no size: %w", unix.ENOMEDIUM)
	}
	// The kernel rounds sizes to sectors of 512 bytes, not to blocks.
	block := int(logical)
	size -= size % int64(block)
	if err := backend.CheckGeometry(size, block); err != nil {
		return err
	}
	d.Offset, d.Memory = block, memoryAlignment(dev, block)
	d.Info = backend.Info{
		Size: size, BlockSize: block, PhysicalBlockSize: physicalBlock(dev, int(physical), block),
		VolatileCache: dev.text("queue/write_cache") == "write back", ReadOnly: readOnly != 0,
		Discard:    dev.number("queue/discard_max_bytes") > 0,
		Rotational: dev.number("queue/rotational") == 1,
		Identity:   identity(d.Path, dev),
	}
	if n := dev.number("queue/optimal_io_size"); n > 0 && n%int64(block) == 0 && n < 1<<30 {
		d.Info.OptimalIO = int(n)
	}
	return nil
}

// physicalBlock returns the size of a physical block, which is written as a whole. A partition may
// begin within one, and a stacked device may have several offsets. Logical blocks at multiples of
// that size are then not one physical block.
func physicalBlock(dev sysfs, physical, logical int) int {
	if dev.number("alignment_offset") != 0 {
		return logical
	}
	return max(physical, logical)
}

// memoryAlignment returns the memory alignment of the device (Linux 6.0), otherwise a block.
func memoryAlignment(dev sysfs, logical int) int {
	if dev.text("queue/dma_alignment") == "" {
		return logical
	}
	if n := dev.number("queue/dma_alignment") + 1; n > 0 && n&(n-1) == 0 && n <= int64(logical) {
		return int(n)
	}
	return logical
}

// identity returns a name of the storage wherever it is plugged in, or else its path.
func identity(path string, dev sysfs) string {
	for _, name := range []string{
		"wwid", "device/wwid", "serial", "device/serial", "../wwid",
		"../device/wwid", "../serial",
	} {
		if id := dev.text(name); id != "" {
			return strings.TrimSpace(id + " " + dev.text("partition"))
		}
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// sysfs is the directory of a device or partition. A partition uses the queue of its disk.
type sysfs string

func (s sysfs) text(name string) string {
	// Not filepath.Join: ".." is the parent of the directory that the link points to.
	text := sys.Attribute(string(s) + "/" + name)
	if text == "" && strings.HasPrefix(name, "queue/") {
		text = sys.Attribute(string(s) + "/../" + name)
	}
	return text
}

func (s sysfs) number(name string) int64 {
	n, _ := strconv.ParseInt(s.text(name), 10, 64)
	return n
}

// Probe reports errors of Open, by an exclusive open for reading, and the device's users.
func Probe(cfg Config) (r backend.Report) {
	cfg.Engine.Probe(&r)
	dc, err := attach(cfg, unix.O_RDONLY)
	switch {
	case errors.Is(err, unix.EBUSY):
		disk.ProbeUsers(cfg.Path, err, &r)
		return r
	case err != nil:
		r.Add(err)
		return r
	}
	defer func() { _ = unix.Close(dc.FD) }()
	disk.ProbeUsers(cfg.Path, nil, &r)
	if cfg.ReadOnly {
		return r
	}
	if dc.Info.ReadOnly {
		r.Add(errReadOnly)
	}
	if err := unix.Access(cfg.Path, unix.R_OK|unix.W_OK); err != nil {
		r.Add(explain(err, false))
	}
	return r
}

// size returns the current size of a block device in bytes, 0 if it is offline. It does not block.
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
