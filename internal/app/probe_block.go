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

	"github.com/nvmf-target/nvmf-target/backend/nvmedrive"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/inventory"
)

// probeBlock says what is wrong with the block device of a namespace and how to mend it.
func probeBlock(n *config.Storage, readOnly bool) (info os.FileInfo, what, mend string) {
	info, err := os.Stat(n.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Sprintf("%q does not exist", n.Path),
			"\"nvmf-target disks\" lists the disks of this machine."
	case err != nil:
		return nil, err.Error(), "Let the user that runs the target reach it."
	case info.Mode().IsRegular():
		return info, fmt.Sprintf("%q is a regular file", n.Path), "Use backend: file."
	case info.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice:
		return info, fmt.Sprintf("%q is not a block device", n.Path),
			"\"nvmf-target disks\" lists the disks of this machine."
	}
	if uses := blockUses(info.Sys().(*syscall.Stat_t).Rdev); len(uses) > 0 {
		return info, fmt.Sprintf("%q is in use: %s", n.Path, strings.Join(uses, ", ")),
			"Unmount it, or end what is made of it; or name another disk (\"nvmf-target disks\")."
	}
	if err := mayOpen(n.Path, readOnly); err != nil {
		return info, fmt.Sprintf("%q cannot be opened: %v", n.Path, err),
			"Give the user that runs the target the right to it, for instance by the group disk, or set read_only: true."
	}
	return info, "", ""
}

// probeNVMe says what is wrong with the drive of a namespace and how to mend it. info is that of
// its block device, so that a namespace with backend block on it is found.
func probeNVMe(n *config.Storage, readOnly bool) (info os.FileInfo, what, mend string) {
	ns, err := nvmedrive.Find(n.Path)
	if err != nil {
		return nil, fmt.Sprintf("%q: %v", n.Path, err),
			"\"nvmf-target disks\" lists the disks of this machine; NVMe drives have devices like /dev/ng0n1."
	}
	if info, what, mend = probeBlock(&config.Storage{Path: ns.Block}, readOnly); what != "" {
		return info, what, mend
	}
	access := uint32(unix.R_OK)
	if !readOnly {
		access |= unix.W_OK
	}
	if err := unix.Access(ns.Char, access); err != nil {
		return info, fmt.Sprintf("%q cannot be opened: %v", ns.Char, err),
			"Give the user that runs the target the right to it, or use backend: block."
	}
	return info, "", ""
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
