package sys

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Attribute returns the content of a file in sysfs or procfs without the white space around it, ""
// if there is none.
func Attribute(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Number returns the number that is the content of a file in sysfs or procfs.
func Number(name string) (int64, error) { return strconv.ParseInt(Attribute(name), 10, 64) }

// DeviceNumber returns a device number as sysfs and procfs write it: "8:1".
func DeviceNumber(dev uint64) string {
	return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
}
