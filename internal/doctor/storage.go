package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/storage"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// disks checks the block devices of namespaces once each (sysfs-block in Documentation).
func (m Machine) disks(t Target) (list []Finding) {
	var seen []string
	for _, s := range t.Storage {
		stack, err := storage.Machine{Sys: m.path("sys"), Proc: m.path("proc")}.StackOf(s.Path)
		if err != nil {
			continue // the check of the configuration reports it
		}
		for _, number := range stack.Devices() {
			if !slices.Contains(seen, number) {
				seen = append(seen, number)
				list = append(list, m.disk(number, s.User)...)
			}
		}
	}
	return list
}

func (m Machine) disk(number, user string) (list []Finding) {
	dir, err := filepath.EvalSymlinks(m.path("sys/dev/block", number))
	if err != nil {
		return nil
	}
	name := filepath.Base(dir)
	below := fmt.Sprintf("%s, below %s", name, user)
	attribute := func(file string) string { return sys.Attribute(filepath.Join(dir, file)) }
	if off := attribute("alignment_offset"); off != "" && off != "0" {
		list = append(list, Finding{
			"disk alignment", Warning, below + ": alignment_offset is " + off + ", so blocks " +
				"do not begin where physical ones do",
			"A block of a host spans two of the disk, which must read before it writes.",
			"make the partition again, beginning at a multiple of 1 MiB",
		})
	}
	// a partition has no queue: its disk has the rest
	if attribute("queue/write_cache") == "write back" {
		list = append(list, Finding{
			"disk write cache", Note, below + ": the volatile write cache is on",
			"A power failure loses writes that no flush followed, and each flush of a host is " +
				"one of the disk, which takes milliseconds without power loss protection.",
			"nothing, if hosts flush (Linux file systems do); drives with power loss protection " +
				"flush at once",
		})
	}
	spins := attribute("queue/rotational") == "1"
	if spins {
		list = append(list, Finding{
			"disk rotation", Note, below + ": rotational",
			"Random access takes milliseconds on disks that spin.",
			"nothing; virtual disks may say so without reason",
		})
	}
	if s := active(attribute("queue/scheduler")); s != "" && s != "none" && !spins {
		list = append(list, Finding{
			"disk scheduler", Note, below + ": the I/O scheduler is " + s,
			"Fast drives need no scheduler, and it costs CPU time for each command.",
			"echo none > /sys/block/" + name + "/queue/scheduler",
		})
	}
	if list == nil && attribute("queue/write_cache") != "" {
		list = append(list, ok("disk", "%s: no volatile write cache, no scheduler", below))
	}
	return list
}

// active returns the scheduler in brackets: "none [mq-deadline] bfq".
func active(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	name, _, _ := strings.Cut(rest, "]")
	return name
}

// fileSystems checks the mount options below files (Documentation/admin-guide/ext4.rst).
func (m Machine) fileSystems(t Target) (list []Finding) {
	var seen []string
	for _, s := range t.Storage {
		var st unix.Stat_t
		if unix.Stat(s.Path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		number := sys.DeviceNumber(st.Dev)
		if slices.Contains(seen, number) {
			continue
		}
		seen = append(seen, number)
		point, options := m.mountOptions(number)
		if slices.Contains(options, "data=journal") {
			list = append(list, Finding{
				"file system", Warning, point + " is mounted with data=journal",
				"All data is written twice, and past O_DIRECT.",
				"data=ordered for " + point + " in /etc/fstab, and mount it again",
			})
		}
		if slices.Contains(options, "discard") {
			list = append(list, Finding{
				"file system", Note, point + " is mounted with discard",
				"Discards of hosts in files reach the disk at once, which makes some " +
					"drives slow.",
				"nodiscard for " + point + " in /etc/fstab, and systemctl enable --now " +
					"fstrim.timer",
			})
		}
	}
	if len(seen) > 0 && list == nil {
		list = append(list, ok("file system", "no mount option that costs"))
	}
	return list
}

// mountOptions returns mount point and options of the file system with this number (proc(5)).
func (m Machine) mountOptions(number string) (point string, options []string) {
	for line := range strings.Lines(m.read("proc/self/mountinfo")) {
		// 36 35 98:0 /root /mountpoint options fields - type source options
		before, after, _ := strings.Cut(line, " - ")
		f, of := strings.Fields(before), strings.Fields(after)
		if len(f) >= 6 && len(of) >= 3 && f[2] == number {
			return f[4], strings.Split(of[2], ",")
		}
	}
	return "", nil
}
