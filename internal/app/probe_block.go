package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/nvmedrive"
	"github.com/nvmf-target/nvmf-target/internal/inventory"
)

// probeBlock says what block.Open would fail with.
func probeBlock(path string, readOnly bool) (r backend.Report) {
	const list = "\"nvmf-target disks\" lists the disks of this machine."
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.Errorf(list, "does not exist")
		return r
	case err != nil:
		r.Errorf("Let the user that runs the target reach it.", "cannot be reached: %v", err)
		return r
	case info.Mode().IsRegular():
		r.Errorf("Use backend: file.", "is a regular file")
		return r
	case info.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice:
		r.Errorf(list, "is not a block device")
		return r
	}
	if uses := blockUses(info.Sys().(*syscall.Stat_t).Rdev); len(uses) > 0 {
		r.Errorf("Unmount it, or end what is made of it; or name another disk (\"nvmf-target disks\").",
			"is in use: %s", strings.Join(uses, ", "))
	} else if err := mayOpen(path, readOnly); err != nil {
		r.Errorf("Give the user that runs the target the right to it, for instance by the group "+
			"disk, or set read_only: true.", "cannot be opened: %v", err)
	}
	return r
}

// probeNVMe says what nvmedrive.Open would fail with.
func probeNVMe(path string, readOnly bool) (r backend.Report) {
	ns, err := nvmedrive.Find(path)
	if err != nil {
		r.Errorf("\"nvmf-target disks\" lists the disks of this machine; NVMe drives have devices "+
			"like /dev/ng0n1.", "%v", err)
		return r
	}
	if r = probeBlock(ns.Block, readOnly); r.Errors != nil {
		return r
	}
	if err := mayOpen(ns.Char, readOnly); err != nil {
		r.Errorf("Give the user that runs the target the right to it, or use backend: block.",
			"cannot be opened: %s: %v", ns.Char, err)
	}
	return r
}

// blockUses says who uses a device: a whole disk by itself and all of its partitions, a partition
// by itself and by what is made of the whole disk.
func blockUses(number uint64) (uses []string) {
	place, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(number),
		unix.Minor(number)))
	if err != nil {
		return nil
	}
	name := filepath.Base(place)
	list, err := inventory.Machine{Sys: "/sys", Proc: "/proc"}.List(nil)
	if err != nil {
		return nil
	}
	for _, d := range list {
		if d.Name == name {
			return d.Uses
		}
		if !slices.Contains(d.Partitions, name) {
			continue
		}
		for _, use := range d.Uses {
			if strings.HasSuffix(use, " ("+name+")") || !strings.HasSuffix(use, ")") {
				uses = append(uses, use)
			}
		}
	}
	return uses
}
