// Package nvmedrive implements storage on a namespace of an NVMe drive. It sends NVMe commands to
// the drive (passthrough) and bypasses the block layer of the kernel. This package has the commands
// and the description of the drive. Package disk does the work that is common to all disks.
package nvmedrive

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/block"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/passthru"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// drive is the Disk of a namespace, which has its block device exclusively, too.
type drive struct {
	*disk.Disk
	claim int
}

func (d *drive) Close() error {
	if err := d.Disk.Close(); err != nil {
		return err
	}
	return unix.Close(d.claim)
}

// Open opens a namespace exclusively: neither its block device nor a partition of that may be
// mounted, swap, or part of another device. cfg.Path is its character device (/dev/ng0n1) or its
// block device. The engine sends the commands: by io_uring, or by blocking ioctls in threads.
func Open(cfg block.Config) (backend.Device, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("NVMe namespace %s: %w", cfg.Path, err)
	}
	return d, nil
}

func open(cfg block.Config) (_ *drive, err error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	var d drive
	claim := func(path string) (disk.Config, error) {
		cfg := cfg
		cfg.Path = path
		return block.Claim(cfg)
	}
	dc, held, err := attach(cfg, claim)
	if err != nil {
		return nil, err
	}
	d.claim = held.FD
	dc.Size = func(int) (int64, error) { return held.Size(d.claim) }
	dc.Reopen = func() (disk.Config, error) { return d.reopen(cfg, dc.Info, claim) }
	if dc.Engine.Name, err = engine(&dc, cfg.Log); err == nil {
		d.Disk, err = disk.New(dc)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(dc.FD), unix.Close(held.FD))
	}
	return &d, nil
}

// attach opens and describes the namespace. claim opens its block device; held is its result.
func attach(cfg block.Config, claim func(path string) (disk.Config, error)) (dc, held disk.Config,
	err error,
) {
	n, err := Find(cfg.Path)
	if err != nil {
		return dc, held, err
	}
	mode := unix.O_RDWR
	if cfg.ReadOnly {
		mode = unix.O_RDONLY
	}
	fd, err := unix.Open(n.Char, mode|unix.O_CLOEXEC, 0)
	if err != nil {
		return dc, held, explain(n.Char, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	nsid, e := sys.NVMeNamespace(fd)
	if e != 0 {
		return dc, held, backend.WithHint(fmt.Errorf(
			"%s is not an NVMe namespace: ioctl(NVME_IOCTL_ID): %w", n.Char, e),
			"Use backend: block.")
	}
	id, err := identify(passthru.FD(fd), nsid)
	if err != nil {
		return dc, held, refused(err)
	}
	if held, err = claim(n.Block); err != nil {
		return dc, held, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(held.FD)
		}
	}()
	if other, e := sys.NVMeNamespace(held.FD); e != 0 || other != nsid {
		return dc, held, fmt.Errorf("%s and %s are not the same namespace: %d and %d (%w)", n.Char,
			n.Block, nsid, other, e)
	}
	// Data written through the page cache must not arrive later.
	if err := unix.Fsync(held.FD); err != nil {
		return dc, held, fmt.Errorf("write back the page cache: %w", err)
	}
	dc = held
	dc.Path, dc.FD = cfg.Path, fd
	return dc, held, newDriver(passthru.FD(fd), id, n.limits(), &dc)
}

// reopen opens both devices of the same namespace after it was offline, wherever path now leads.
func (d *drive) reopen(cfg block.Config, was backend.Info,
	claim func(path string) (disk.Config, error),
) (disk.Config, error) {
	dc, held, err := attach(cfg, claim)
	if err != nil {
		return dc, err
	}
	if dc.Info != was {
		err = backend.WithHint(fmt.Errorf("this is another drive, or its description has changed, "+
			"and it is not used (%q, before %q)", dc.Info.Identity, was.Identity),
			"Restart the target to use it.")
	} else {
		err = unix.Dup3(held.FD, d.claim, unix.O_CLOEXEC)
	}
	if err = errors.Join(err, unix.Close(held.FD)); err != nil {
		_ = unix.Close(dc.FD)
	}
	return dc, err
}

// engine returns a working engine. io_uring commands need Linux 5.19, and may be forbidden.
func engine(dc *disk.Config, log *slog.Logger) (string, error) {
	if dc.Engine.Name == disk.Threads {
		return disk.Threads, nil
	}
	err := dc.Driver.(*driver).try(dc.FD)
	if err == nil {
		return dc.Engine.Name, nil
	}
	if dc.Engine.Name == disk.IOUring {
		return "", backend.WithHint(fmt.Errorf("commands by io_uring: %w", err), "With "+
			"disks.engine: threads they go by ioctl, with backend: block through the block layer.")
	}
	log.Warn("io_uring does not take commands for an NVMe drive: they go by blocking ioctls, "+
		"which costs more CPU for each; backend: block may be faster", "path", dc.Path, "err", err)
	return disk.Threads, nil
}

// explain describes an error of open, with a hint.
func explain(path string, err error) error {
	hint := ""
	switch err {
	case unix.ENOENT:
		return backend.WithHint(fmt.Errorf("%s is missing: the kernel has no commands for single "+
			"namespaces (Linux 5.13 and later have), or they are hidden here", path),
			"Use backend: block.")
	case unix.ENXIO, unix.ENODEV:
		return fmt.Errorf("there is no drive at %s: %w", path, err)
	case unix.EACCES, unix.EPERM:
		hint = "Give the user that runs the target access to it, for instance by a udev rule " +
			"for the subsystem nvme-generic; or use backend: block."
	}
	return backend.WithHint(fmt.Errorf("%s cannot be opened: %w", path, err), hint)
}

// refused adds a hint to the error of a command that the kernel did not pass on.
func refused(err error) error {
	var e syscall.Errno
	if !errors.As(err, &e) {
		return err
	}
	hint := ""
	switch e {
	case unix.EACCES, unix.EPERM:
		hint = "The kernel lets only root send commands, from Linux 6.2 on any user who may open " +
			"the device: give the target CAP_SYS_ADMIN, or use backend: block."
	case unix.ENOTTY, unix.EOPNOTSUPP, unix.ENOSYS:
		hint = "The kernel passes no commands on to this device; use backend: block."
	}
	return backend.WithHint(err, hint)
}

// Probe reports errors of Open, as far as possible without commands, and the users.
func Probe(cfg block.Config) (r backend.Report) {
	n, err := Find(cfg.Path)
	if err != nil {
		r.Add(err)
		return r
	}
	r = block.Probe(block.Config{Path: n.Block, ReadOnly: cfg.ReadOnly})
	for _, list := range [][]backend.Problem{r.Errors, r.Warnings} {
		for i := range list {
			list[i].What = "has the block device " + n.Block + ", which " + list[i].What
		}
	}
	cfg.Engine.Probe(&r)
	mode := uint32(unix.R_OK)
	if !cfg.ReadOnly {
		mode |= unix.W_OK
	}
	if err := unix.Access(n.Char, mode); err != nil {
		r.Add(explain(n.Char, err))
	}
	return r
}
