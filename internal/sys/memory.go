package sys

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// AvailableMemory returns the bytes that this process can use without swapping: MemAvailable
// (proc(5), meminfo), or the rest within the limits of its control groups (version 2), if less.
func AvailableMemory() (int64, error) { return availableMemory("/") }

func availableMemory(root string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, err
	}
	_, rest, ok := bytes.Cut(text, []byte("MemAvailable:"))
	var kb int64
	if _, err := fmt.Fscan(bytes.NewReader(rest), &kb); !ok || err != nil {
		return 0, fmt.Errorf("no MemAvailable in %s/proc/meminfo", root)
	}
	n := kb << 10
	groups := filepath.Join(root, "sys/fs/cgroup")
	for dir := filepath.Join(groups,
		ownGroup(root)); len(dir) > len(groups); dir = filepath.Dir(dir) {
		limit, err1 := Number(dir + "/memory.max") // "max": no limit
		used, err2 := Number(dir + "/memory.current")
		if err1 == nil && err2 == nil {
			n = min(n, max(limit-used, 0))
		}
	}
	return n, nil
}

// ownGroup returns the control group of this process, below the root of the hierarchy.
func ownGroup(root string) string {
	for line := range strings.SplitSeq(Attribute(filepath.Join(root, "proc/self/cgroup")), "\n") {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return path
		}
	}
	return ""
}
