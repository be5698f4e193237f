package app

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stack is what a path stands on: itself, and the disk of a partition or the file of a loop device.
type stack struct {
	layers []string // "8:1" for a block device, "8:1 file 1234" for a file
	whole  string   // the disk of a partition
}

// stackOf looks at what is at path.
func stackOf(path string) (*stack, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	st := info.Sys().(*syscall.Stat_t)
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return &stack{layers: []string{fmt.Sprintf("%s file %d", deviceNumber(st.Dev), st.Ino)}}, nil
	}
	number := deviceNumber(st.Rdev)
	s := &stack{layers: []string{number}}
	sysfs, err := filepath.EvalSymlinks("/sys/dev/block/" + number)
	if err != nil {
		return s, nil
	}
	if _, err := os.Stat(filepath.Join(sysfs, "partition")); err == nil {
		disk, _ := os.ReadFile(filepath.Join(filepath.Dir(sysfs), "dev"))
		s.whole = strings.TrimSpace(string(disk))
	}
	if file, err := os.ReadFile(filepath.Join(sysfs, "loop/backing_file")); err == nil {
		if below, err := stackOf(strings.TrimSpace(string(file))); err == nil {
			s.layers = append(s.layers, below.layers...)
		}
	}
	return s, nil
}

func deviceNumber(dev uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
}

// Overlaps says whether two paths stand on the same storage, and on which.
func (s *stack) Overlaps(o *stack) (where string, ok bool) {
	for _, l := range s.layers {
		if slices.Contains(o.layers, l) || l == o.whole {
			return l, true
		}
	}
	if s.whole != "" && slices.Contains(o.layers, s.whole) {
		return s.whole, true
	}
	return "", false
}
