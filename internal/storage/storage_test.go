package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// fake is a machine with sysfs and procfs as files in a directory.
type fake struct {
	Machine
	t    *testing.T
	root string
}

func newFake(t *testing.T) *fake {
	root := t.TempDir()
	f := &fake{Machine{filepath.Join(root, "sys"), filepath.Join(root, "proc")}, t, root}
	f.write("proc/self/mountinfo", "")
	return f
}

func (f *fake) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	testutil.Must(f.t, os.MkdirAll(filepath.Dir(path), 0o700))
	testutil.Must(f.t, os.WriteFile(path, []byte(text), 0o600))
}

func (f *fake) link(name, target string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	testutil.Must(f.t, os.MkdirAll(filepath.Dir(path), 0o700))
	testutil.Must(f.t, os.Symlink(filepath.Join(f.root, target), path))
}

// disk adds a block device; files are its attributes.
func (f *fake) disk(dir, number string, files map[string]string) {
	f.t.Helper()
	dir = "sys/devices/" + dir
	f.write(dir+"/dev", number+"\n")
	for name, text := range files {
		f.write(dir+"/"+name, text+"\n")
	}
	f.link("sys/dev/block/"+number, dir)
	f.link("sys/class/block/"+filepath.Base(dir), dir)
}

// partition adds a partition, in sectors.
func (f *fake) partition(dir, number string, start, size int) {
	f.t.Helper()
	f.disk(dir, number, map[string]string{
		"partition": "1", "start": fmt.Sprint(start), "size": fmt.Sprint(size),
	})
}

// newMachine has two disks with partitions, a RAID, volumes, and loop devices on files.
func newMachine(t *testing.T) *fake {
	f := newFake(t)
	f.disk("pci/sda", "8:0", nil)
	f.partition("pci/sda/sda1", "8:1", 2048, 1000)
	f.partition("pci/sda/sda2", "8:2", 4096, 1000)
	f.partition("pci/sda/sda3", "8:3", 4000, 200) // overlaps the second one
	f.disk("pci/sdb", "8:16", nil)
	f.disk("virtual/dm-0", "252:0", map[string]string{"slaves/sda2/dev": "8:2"})
	f.disk("virtual/dm-1", "252:1", map[string]string{"slaves/sda2/dev": "8:2"})
	f.write("sys/devices/pci/sda/sda2/holders/dm-0/x", "")
	f.write("sys/devices/pci/sda/sda2/holders/dm-1/x", "")
	f.disk("virtual/md127", "9:127", map[string]string{"slaves/sdb/dev": "8:16"})
	f.write("sys/devices/pci/sdb/holders/md127/x", "")
	for i, loop := range []map[string]string{
		{},
		{"loop/offset": "0", "loop/sizelimit": "8192"},
		{"loop/offset": "8192", "loop/sizelimit": "0"},
	} {
		loop["loop/backing_file"] = filepath.Join(f.root, "image")
		f.disk(fmt.Sprint("virtual/loop", i), fmt.Sprint("7:", i), loop)
	}
	f.partition("virtual/loop1/loop1p1", "259:1", 0, 4)
	f.partition("virtual/loop1/loop1p2", "259:2", 4, 4)
	f.disk("virtual/loop9", "7:9", map[string]string{
		"loop/backing_file": filepath.Join(f.root, "none") + " (deleted)",
	})
	f.write("image", "an image")
	f.write("other", "another file")
	return f
}

// at returns the stack of a block device of the fake machine, or of a file.
func (f *fake) at(name string) *Stack {
	f.t.Helper()
	if number := sys.Attribute(filepath.Join(f.Sys, "class/block", name, "dev")); number != "" {
		return f.device(number)
	}
	s := testutil.Value(f.StackOf(filepath.Join(f.root, name)))(f.t)
	return s
}

func TestOverlaps(t *testing.T) {
	f := newMachine(t)
	testutil.Must(t, os.Link(filepath.Join(f.root, "image"), filepath.Join(f.root, "hard")))
	f.link("symbolic", "image")
	for _, row := range testutil.Rows(t, "overlaps") {
		var tc struct{ a, b, where string }
		row.Scan(&tc.a, &tc.b, &tc.where)
		where, ok := f.at(tc.a).Overlaps(f.at(tc.b))
		testutil.True(t, ok == (tc.where != "") && (!ok || filepath.Base(where) == tc.where),
			"%s and %s: %q, %v, want %q", tc.a, tc.b, where, ok, tc.where)
		if _, other := f.at(tc.b).Overlaps(f.at(tc.a)); other != ok {
			t.Errorf("%s and %s: %v, the other way round %v", tc.a, tc.b, ok, other)
		}
	}
}

func TestStackOf(t *testing.T) {
	f := newMachine(t)
	for path, want := range map[string]error{
		f.root: nil, "": nil, filepath.Join(f.root, "no/such/file"): fs.ErrNotExist,
		os.DevNull: nil,
	} {
		if _, err := f.StackOf(path); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", path, err, want)
		}
	}
	// a file system on several devices has its own number
	f.write("proc/self/mountinfo",
		"30 1 0:40 / /srv rw - btrfs /dev/sda1 rw\n31 1 0:41 / /tmp rw - tmpfs tmpfs rw\n")
	for number, want := range map[string]string{
		"0:40": "8:1", "0:41": "", "0:42": "",
		"8:1": "8:1",
	} {
		testutil.Equal(t, f.fileSystem(number), want, "%s", number)
	}
	// a device below itself does not loop
	f.disk("virtual/dm-7", "252:7", map[string]string{"slaves/dm-7/dev": "252:7"})
	testutil.Equal(t, len(f.at("dm-7").layers), maxDepth, "layers")
}

func TestUsers(t *testing.T) {
	f := newMachine(t)
	f.write("proc/self/mountinfo", `22 1 252:0 / / rw - ext4 /dev/mapper/root rw
23 1 252:0 /var /srv rw - ext4 /dev/mapper/root rw
24 1 8:1 / /boot\040files rw - vfat /dev/sda1 rw
25 1 7:2 / /mnt ro - squashfs /dev/loop2 ro
`)
	f.write("a swap", "")
	f.write("proc/swaps", "Filename\t\tType\n/dev/dm-1                 partition 1000 0 -2\n"+
		f.root+"/a\\040swap file 1000 0 -3\n")
	process := func(pid int, name, target, flags string) {
		f.t.Helper()
		dir := fmt.Sprintf("proc/%d/", pid)
		f.write(dir+"comm", name+"\n")
		f.write(dir+"fdinfo/3", "pos:\t0\nflags:\t"+flags+"\nmnt_id:\t27\n")
		f.link(dir+"fd/3", target)
	}
	process(812, "qemu", "other", "0100002")
	process(813, "cat", "other", "0100000")
	process(os.Getpid(), "self", "other", "0100002")
	f.write("proc/814/comm", "no descriptors")
	for _, row := range testutil.Rows(t, "users") {
		var name, want string
		row.Scan(&name, &want)
		users := testutil.Value(f.Users(f.at(name)))(t)
		var got []string
		for _, u := range users {
			got = append(got, strings.ReplaceAll(u.Name, f.root+"/", ""))
			testutil.True(t, (u.Program == "qemu") == (name == "other"), "%s: %+v", name, u)
		}
		text := strings.Join(got, ", ")
		testutil.True(t, text == want, "%s:\n%s, want\n%s", name, text, want)
	}
	f.Proc = "/does/not/exist"
	testutil.True(t, testutil.Err(f.Users(f.at("sda"))) != nil, "no error without procfs")
}

// TestProcesses: open block devices, by number.
func TestProcesses(t *testing.T) {
	f := newFake(t)
	node := filepath.Join(f.root, "node")
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(8, 17))); err != nil {
		t.Skipf("a device node cannot be made (root is needed): %v", err)
	}
	for _, fd := range []string{"3", "4"} {
		f.write("proc/812/fdinfo/"+fd, "flags:\t02100002\n")
		f.link("proc/812/fd/"+fd, "node")
	}
	f.write("proc/812/fdinfo/5", "flags:\t02100002\n")
	f.link("proc/812/fd/5", "file")
	f.write("file", "")
	f.write("proc/812/comm", "nvmf-target\n")
	got := f.Processes()
	testutil.True(t, len(got) == 1 && slices.Equal(got["8:17"],
		[]string{"process 812 (nvmf-target)"}), "%q", got)
}

// TestLoopDevice tests a loop device and a process of this machine.
func TestLoopDevice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backing")
	testutil.Must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	out, err := exec.Command("losetup", "-f", "--show", file).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device (root and losetup are needed): %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	defer func() {
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v: %s", err, out)
		}
	}()
	m := Linux()
	onFile, err1 := m.StackOf(file)
	onLoop, err2 := m.StackOf(device)
	testutil.Must(t, errors.Join(err1, err2))
	where, ok := onLoop.Overlaps(onFile)
	testutil.True(t, ok && where == file, "%s and its file: %q, %v", device, where, ok)
	// a process that has the device open
	holder := exec.Command("sh", "-c", "echo ready; read line; true", "holder")
	in, err1 := holder.StdinPipe()
	ready, err2 := holder.StdoutPipe()
	open, err3 := os.OpenFile(device, os.O_RDWR, 0)
	testutil.Must(t, errors.Join(err1, err2, err3))
	holder.ExtraFiles = []*os.File{open}
	testutil.Must(t, holder.Start())
	_, err1 = ready.Read(make([]byte, 6))
	of, err2 := m.Users(onFile)
	on, err3 := m.Users(onLoop)
	testutil.Check(t, errors.Join(err1, err2, err3, open.Close(), in.Close(), holder.Wait()))
	who := User{fmt.Sprintf("process %d (sh)", holder.Process.Pid), "sh"}
	testutil.True(t, slices.Contains(of, User{Name: filepath.Base(device)}) && slices.Contains(on,
		who) && len(on) == 1, "users of the file: %v; of the device: %v", of, on)
}
