package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mounts says for each device number what is mounted from it, and what swaps. File systems on
// several devices have a number of their own in the table of mounts; there the name of the device
// counts.
func (m Machine) mounts() (map[string][]string, error) {
	info, err := os.ReadFile(filepath.Join(m.Proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("mounted file systems: %w", err)
	}
	used := map[string][]string{}
	seen := map[string]bool{} // a device that is mounted several times is named once
	for line := range strings.Lines(string(info)) {
		// 36 35 98:0 /root /mountpoint options fields - type source options (proc(5))
		before, after, ok := strings.Cut(line, " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(source) < 2 {
			continue
		}
		n := fields[2]
		if strings.HasPrefix(n, "0:") {
			n = m.numberOf(source[1])
		}
		if n != "" && !seen[n] {
			seen[n] = true
			used[n] = append(used[n], unescape(fields[4]))
		}
	}
	swaps, _ := os.ReadFile(filepath.Join(m.Proc, "swaps")) // missing in kernels without swap
	for line := range strings.Lines(string(swaps)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "/dev/") {
			if n := m.numberOf(name); n != "" {
				used[n] = append(used[n], "swap")
			}
		}
	}
	return used, nil
}

// numberOf is the device number of a device below /dev, "" if it is no block device.
func (m Machine) numberOf(device string) string {
	name, ok := strings.CutPrefix(device, "/dev/")
	if !ok {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(m.Sys, "class/block", filepath.Base(name), "dev"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// unescape undoes what the kernel does to blanks in mount points.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(s)
}
