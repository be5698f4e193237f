package sys

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Attribute returns the content of a file in sysfs or procfs, trimmed, or "" without one.
func Attribute(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Number returns the number in a file of sysfs or procfs.
func Number(name string) (int64, error) { return strconv.ParseInt(Attribute(name), 10, 64) }

// DeviceNumber formats a device number like sysfs and procfs: "8:1".
func DeviceNumber(dev uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
}
