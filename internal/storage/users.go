package storage

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// User is a user of storage.
type User struct {
	// Name is the user and, in parentheses, the device that it uses, if in another layer: "mounted
	// at / (sda1)", "swap", "dm-0 (sda2)", "loop0", "process 812 (qemu)".
	Name string
	// Program is the name of the program of a process, otherwise "".
	Program string
}

// use is a user and the storage in use.
type use struct {
	User
	by string // the number of the block device that is the user, if any
	on *Stack
}

// Users returns the users of s and of the layers below: file systems, swap, other block devices,
// and processes that have it open for writing, except this one. The layers of s itself do not
// count: the loop device of a stack does not use its file.
func (m Machine) Users(s *Stack) ([]User, error) {
	all, err := m.uses()
	if err != nil {
		return nil, err
	}
	var users []User
	for _, u := range all {
		where, ok := s.usedBy(u)
		if !ok {
			continue
		}
		if where != s.Name() {
			u.Name += " (" + where + ")"
		}
		if !slices.Contains(users, u.User) {
			users = append(users, u.User)
		}
	}
	return users, nil
}

// usedBy reports whether u uses a part of s, and on which device. Layers divided by a file system
// or the device mapper do not count.
func (s *Stack) usedBy(u use) (where string, ok bool) {
	if slices.ContainsFunc(s.layers, func(l layer) bool { return l.id == u.by }) {
		return "", false
	}
	for _, l := range s.layers {
		if l.shared {
			continue
		}
		if slices.ContainsFunc(u.on.layers, l.overlaps) {
			return u.on.Name(), true
		}
	}
	return "", false
}

// uses returns all uses on this machine.
func (m Machine) uses() ([]use, error) {
	mounts, err := m.Mounts()
	if err != nil {
		return nil, err
	}
	var list []use
	for number, where := range mounts {
		for _, name := range where {
			list = append(list, use{User: User{Name: name}, on: m.device(number)})
		}
	}
	for _, name := range m.swaps() {
		on, err := m.StackOf(name)
		if err == nil && !on.layers[0].device() { // devices are among the mounts
			list = append(list, use{User: User{Name: "swap"}, on: on})
		}
	}
	devices, _ := os.ReadDir(filepath.Join(m.Sys, "class/block"))
	for _, d := range devices {
		dir := filepath.Join(m.Sys, "class/block", d.Name())
		number := sys.Attribute(filepath.Join(dir, "dev"))
		holders, _ := os.ReadDir(filepath.Join(dir, "holders"))
		for _, h := range holders {
			list = append(list, use{
				User: User{Name: h.Name()}, on: m.device(number),
				by: sys.Attribute(filepath.Join(m.Sys, "class/block", h.Name(), "dev")),
			})
		}
		if exists(dir, "loop/backing_file") {
			on := m.device(number)
			on.layers = on.layers[1:] // the file
			list = append(list, use{User: User{Name: d.Name()}, by: number, on: on})
		}
	}
	m.opened(func(u User, l layer) {
		on := &Stack{layers: []layer{l}}
		if l.device() {
			on = m.device(l.id)
		}
		list = append(list, use{User: u, on: on})
	})
	slices.SortFunc(list, func(a, b use) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// device returns the stack of a block device.
func (m Machine) device(number string) *Stack {
	s := &Stack{}
	m.addDevice(s, number, layer{to: math.MaxInt64})
	return s
}

// Processes returns the processes with a block device open for writing, by its number.
func (m Machine) Processes() map[string][]string {
	list := map[string][]string{}
	m.opened(func(u User, l layer) {
		if l.device() && !slices.Contains(list[l.id], u.Name) {
			list[l.id] = append(list[l.id], u.Name)
		}
	})
	return list
}

// opened calls fn with every block device and regular file that another process has open for
// writing, as far as visible to this process.
func (m Machine) opened(fn func(User, layer)) {
	processes, _ := os.ReadDir(m.Proc)
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join(m.Proc, p.Name())
		files, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, f := range files {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dir, "fd", f.Name()), &st) != nil {
				continue
			}
			l := layer{id: sys.DeviceNumber(st.Rdev), to: math.MaxInt64}
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFBLK:
			case unix.S_IFREG:
				l.id = fmt.Sprint(sys.DeviceNumber(st.Dev), " file ", st.Ino)
			default:
				continue
			}
			if !forWriting(filepath.Join(dir, "fdinfo", f.Name())) {
				continue
			}
			l.name, _ = os.Readlink(filepath.Join(dir, "fd", f.Name()))
			program := sys.Attribute(filepath.Join(dir, "comm"))
			fn(User{Name: fmt.Sprintf("process %d (%s)", pid, program), Program: program}, l)
		}
	}
}

// forWriting reports whether a file is open for writing (proc(5), fdinfo, has no O_EXCL).
func forWriting(fdinfo string) bool {
	for line := range strings.Lines(sys.Attribute(fdinfo)) {
		if v, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(v), 8, 64)
			return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}
