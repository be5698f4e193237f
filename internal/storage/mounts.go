package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// mount is a line of the table of mounts (proc(5), mountinfo).
type mount struct{ number, point string }

// mountTable returns the mounts, each with the number of its block device. The table has an
// anonymous number for a file system on several devices. For such a mount its source is used, and
// anonymous maps the anonymous number to that of the source.
func (m Machine) mountTable() (mounts []mount, anonymous map[string]string, err error) {
	info, err := os.ReadFile(filepath.Join(m.Proc, "self/mountinfo"))
	if err != nil {
		return nil, nil, fmt.Errorf("mounted file systems: %w", err)
	}
	anonymous = map[string]string{}
	for line := range strings.Lines(string(info)) {
		// 36 35 98:0 /root /mountpoint options fields - type source options
		before, after, ok := strings.Cut(line, " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(source) < 2 {
			continue
		}
		n := fields[2]
		if strings.HasPrefix(n, "0:") {
			n = m.numberOf(source[1])
			anonymous[fields[2]] = n
		}
		if n != "" {
			mounts = append(mounts, mount{n, unescape(fields[4])})
		}
	}
	return mounts, anonymous, nil
}

// Mounts returns the uses of block devices by the kernel, by the number of the device ("8:1"):
// "mounted at /", once for each device, and "swap".
func (m Machine) Mounts() (map[string][]string, error) {
	mounts, _, err := m.mountTable()
	if err != nil {
		return nil, err
	}
	used := map[string][]string{}
	for _, mt := range mounts {
		if used[mt.number] == nil {
			used[mt.number] = []string{"mounted at " + mt.point}
		}
	}
	for _, name := range m.swaps() {
		if n := m.numberOf(name); n != "" {
			used[n] = append(used[n], "swap")
		}
	}
	return used, nil
}

// swaps returns the paths of the swap devices and files.
func (m Machine) swaps() (list []string) {
	table, _ := os.ReadFile(filepath.Join(m.Proc, "swaps")) // missing in kernels without swap
	for line := range strings.Lines(string(table)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "/") {
			list = append(list, unescape(strings.TrimRight(name, "\t")))
		}
	}
	return list
}

// numberOf returns the number of a device below /dev, "" if it is not a block device.
func (m Machine) numberOf(device string) string {
	name, ok := strings.CutPrefix(device, "/dev/")
	if !ok {
		return ""
	}
	if real, err := filepath.EvalSymlinks(device); err == nil { // /dev/mapper/NAME
		name = real
	}
	return sys.Attribute(filepath.Join(m.Sys, "class/block", filepath.Base(name), "dev"))
}

// unescape undoes the escapes of the kernel in mount points.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(s)
}
