// Package storage finds the storage below a path and the users of this storage, and reports whether
// two paths share storage. It reads sysfs and procfs and opens nothing.
package storage

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Machine has the sources of the facts.
type Machine struct {
	// Sys and Proc are the mount points of sysfs and procfs.
	Sys, Proc string
}

// Linux returns this machine.
func Linux() Machine { return Machine{Sys: "/sys", Proc: "/proc"} }

// Stack is the storage of a path: the file or block device itself, and everything below it.
//
//	file          -> the block device that its file system is on
//	loop device   -> its file
//	partition     -> its disk
//	device mapper, MD -> the devices that it is made of
type Stack struct {
	layers []layer // the path's own first
}

// layer is a range of a file or block device.
type layer struct {
	id   string // "8:1" for a block device, "8:1 file 1234" for a file
	name string // for people: "sda1", "/srv/disk.img"
	from int64  // in bytes
	to   int64  // end of the range, math.MaxInt64 for all
	// shared: a file system or the device mapper placed the layer above within the range.
	shared bool
}

// maxDepth bounds the layers of a stack, in case of a loop.
const maxDepth = 32

// StackOf returns the stack of the file or block device at path. A file that does not exist yet is
// identified by its directory and its name.
func (m Machine) StackOf(path string) (*Stack, error) {
	if path == "" {
		return nil, errors.New("no path is given")
	}
	s := &Stack{}
	err := m.addPath(s, path, layer{to: math.MaxInt64})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// addPath adds the file or block device at path and everything below it. part is the range in use.
func (m Machine) addPath(s *Stack, path string, part layer) error {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	id := fmt.Sprint("file ", st.Ino)
	if err == unix.ENOENT {
		err = unix.Stat(filepath.Dir(path), &st)
		id = fmt.Sprint("file ", st.Ino, "/", filepath.Base(path))
		st.Mode = unix.S_IFREG
	}
	if err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		m.addDevice(s, sys.DeviceNumber(st.Rdev), part)
		return nil
	case unix.S_IFREG:
		number := sys.DeviceNumber(st.Dev)
		part.id, part.name = number+" "+id, path
		s.layers = append(s.layers, part)
		m.addDevice(s, m.fileSystem(number), layer{to: math.MaxInt64, shared: true})
		return nil
	}
	return fmt.Errorf("%s is not a regular file or a block device", path)
}

// fileSystem returns the block device of the file system with this number, "" without one.
func (m Machine) fileSystem(number string) string {
	if !strings.HasPrefix(number, "0:") {
		return number
	}
	_, anonymous, err := m.mountTable()
	if err != nil {
		return ""
	}
	return anonymous[number]
}

// addDevice adds a block device and everything below it. part is the range in use.
func (m Machine) addDevice(s *Stack, number string, part layer) {
	if number == "" || len(s.layers) >= maxDepth {
		return
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(m.Sys, "dev/block", number))
	part.id, part.name = number, filepath.Base(dir)
	if err != nil {
		part.name = number
	}
	s.layers = append(s.layers, part)
	if err != nil {
		return
	}
	if start, err := sectors(dir, "start"); err == nil && exists(dir, "partition") {
		size, err := sectors(dir, "size")
		if err != nil {
			size = math.MaxInt64 - start
		}
		m.addDevice(s, sys.Attribute(filepath.Join(filepath.Dir(dir), "dev")),
			part.within(start, size))
	}
	if file := sys.Attribute(filepath.Join(dir, "loop/backing_file")); file != "" {
		off, _ := sys.Number(filepath.Join(dir, "loop/offset"))
		size, _ := sys.Number(filepath.Join(dir, "loop/sizelimit"))
		size = cmp.Or(size, math.MaxInt64-off)
		_ = m.addPath(s, file, part.within(off, size)) // the file may have been deleted
	}
	slaves, _ := os.ReadDir(filepath.Join(dir, "slaves"))
	for _, slave := range slaves {
		m.addDevice(s, sys.Attribute(filepath.Join(dir, "slaves", slave.Name(), "dev")),
			layer{to: math.MaxInt64, shared: true})
	}
}

// device reports whether the layer is a block device.
func (l layer) device() bool { return !strings.Contains(l.id, " ") }

// within returns the range in the layer below, in which this layer has n bytes at off.
func (l layer) within(off, n int64) layer {
	l.from = min(l.from, n) + off
	l.to = min(l.to, n) + off
	return l
}

// overlaps reports whether two ranges share bytes that are not divided among their users.
func (l layer) overlaps(o layer) bool {
	return l.id == o.id && l.from < o.to && o.from < l.to && !(l.shared && o.shared)
}

// Overlaps reports whether two paths lead to the same bytes, and returns the name of the
// file or block device where they meet. Both may share a device without that: as files of one file
// system, partitions, or volumes of the device mapper.
func (s *Stack) Overlaps(o *Stack) (where string, ok bool) {
	for _, a := range s.layers {
		if slices.ContainsFunc(o.layers, a.overlaps) {
			return a.name, true
		}
	}
	return "", false
}

// Name returns the name of the file or block device itself: "sda1", or the path of a file.
func (s *Stack) Name() string {
	if len(s.layers) == 0 {
		return ""
	}
	return s.layers[0].name
}

// Devices returns the numbers of the block devices among the layers ("8:1"), top to bottom.
func (s *Stack) Devices() (numbers []string) {
	for _, l := range s.layers {
		if l.device() {
			numbers = append(numbers, l.id)
		}
	}
	return numbers
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// sectors reads a number of sectors of 512 bytes and returns bytes.
func sectors(dir, name string) (int64, error) {
	n, err := sys.Number(filepath.Join(dir, name))
	return n << 9, err
}
