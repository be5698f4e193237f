package nvmedrive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Namespace is a namespace of a drive on this machine.
type Namespace struct {
	// Char is the character device, which takes commands. Block is the block device.
	Char, Block string
	// sysfs is the directory of the block device.
	sysfs string
}

// names matches the kernel's names for the devices of a namespace: ng0n1 and nvme0n1. The first
// numbers may differ, since one may count controllers and the other subsystems. The second numbers
// are equal, and so is the directory in sysfs.
var names = regexp.MustCompile(`^(ng|nvme)[0-9]+(n[0-9]+)(p[0-9]+)?$`)

// Find returns the namespace of a character or block device. It opens nothing.
func Find(path string) (Namespace, error) {
	if path == "" {
		return Namespace{}, errors.New("no path is given")
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Namespace{}, disk.Unreachable(err)
	}
	kind := "char"
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
	case unix.S_IFBLK:
		kind = "block"
	case unix.S_IFREG:
		return Namespace{}, errors.New("is a regular file; use backend: file")
	default:
		return Namespace{}, errors.New("is not a device")
	}
	place, err := filepath.EvalSymlinks(filepath.Join("/sys/dev", kind, sys.DeviceNumber(st.Rdev)))
	if err != nil {
		return Namespace{}, fmt.Errorf("there is no device with this name: %w", unix.ENXIO)
	}
	return named(place, kind)
}

// named returns the namespace of the device at this place in sysfs.
func named(place, kind string) (Namespace, error) {
	dir, name := filepath.Split(place)
	m := names.FindStringSubmatch(name)
	switch {
	case m == nil && kind == "block":
		return Namespace{}, fmt.Errorf(
			"is %s, not a namespace of an NVMe drive; use backend: block", name)
	case m == nil:
		return Namespace{}, fmt.Errorf(
			"is %s, not a namespace of an NVMe drive, such as ng0n1", name)
	case m[3] != "":
		return Namespace{}, fmt.Errorf("is a partition: commands go to whole namespaces; "+
			"name %s, or use backend: block", strings.TrimSuffix(name, m[3]))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Namespace{}, err
	}
	var n Namespace
	for _, e := range entries {
		o := names.FindStringSubmatch(e.Name())
		switch {
		case o == nil || o[2] != m[2] || o[3] != "":
		case o[1] == "ng":
			n.Char = "/dev/" + e.Name()
		default:
			n.Block, n.sysfs = "/dev/"+e.Name(), filepath.Join(dir, e.Name())
		}
	}
	switch {
	case n.Char == "":
		return n, errors.New("has no character device: the kernel has no commands for single " +
			"namespaces (Linux 5.13 and later have); use backend: block")
	case n.Block == "":
		return n, errors.New(
			"has no block device: its command set or its format is not one for blocks")
	}
	return n, nil
}

// limits are the most bytes that the kernel passes on in a command; 0 if it sends none.
type limits struct{ transfer, zeroes, discard int64 }

func (n *Namespace) limits() limits {
	queue := func(name string) int64 {
		v, _ := sys.Number(n.sysfs + "/queue/" + name)
		return v
	}
	// A transfer may begin anywhere in a page, and each page may be a segment.
	pages := max(queue("max_segments")-1, 1) * int64(os.Getpagesize())
	return limits{
		min(queue("max_hw_sectors_kb")<<10, pages), queue("write_zeroes_max_bytes"),
		queue("discard_max_bytes"),
	}
}
