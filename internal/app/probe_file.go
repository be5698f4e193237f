package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
)

// probeFile says what file.Open would fail with.
func probeFile(c file.Config) (r backend.Report) {
	info, err := os.Stat(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		probeNewFile(c, &r)
		return r
	case err != nil:
		r.Errorf("Let the user that runs the target reach it.", "cannot be reached: %v", err)
	case info.IsDir():
		r.Errorf("Name a file in it.", "is a directory")
	case info.Mode()&os.ModeCharDevice != 0 && strings.HasPrefix(filepath.Base(c.Path), "dax"):
		r.Errorf("Make it one of mode fsdax (ndctl), mount ext4 or xfs there with -o dax, and name a "+
			"file in it.", "is persistent memory without a file system")
	case !info.Mode().IsRegular():
		r.Errorf("Name a regular file.", "is not a regular file")
	case info.Size() == 0 && c.Size == 0:
		r.Errorf("Add size, for instance size: 10GiB.", "is empty and no size is given")
	case info.Size() != 0 && c.Size != 0 && info.Size() != c.Size:
		r.Errorf("Delete size to take over that of the file.", "has %d bytes, not %d", info.Size(),
			c.Size)
	}
	if err := mayOpen(c.Path, c.ReadOnly); err != nil && r.Errors == nil {
		r.Errorf("Give the user that runs the target the right to it, or set read_only: true.",
			"cannot be opened: %v", err)
	}
	return r
}

func probeNewFile(c file.Config, r *backend.Report) {
	dir := filepath.Dir(c.Path)
	info, err := os.Stat(dir)
	switch {
	case err != nil || !info.IsDir():
		r.Errorf("Create it: mkdir -p "+dir+".", "is in %q, a directory that does not exist", dir)
	case c.ReadOnly:
		r.Errorf("Create the file, or delete read_only.",
			"does not exist, and a read-only namespace is not created")
	case c.Size == 0:
		r.Errorf("Add size to create it, for instance size: 10GiB.",
			"does not exist and no size is given")
	default:
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			r.Errorf("Give the user that runs the target the right to write in "+dir+".",
				"cannot be created: %v", err)
		}
	}
}

// mayOpen is the error that opening path would give for lack of rights.
func mayOpen(path string, readOnly bool) error {
	mode := uint32(unix.R_OK)
	if !readOnly {
		mode |= unix.W_OK
	}
	return unix.Access(path, mode)
}
