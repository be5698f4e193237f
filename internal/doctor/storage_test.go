package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestDisks: a file on a partition of a disk. Only the device numbers are real.
func TestDisks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	testutil.Must(t, os.WriteFile(path, nil, 0o600))
	info := testutil.Value(os.Stat(path))(t)
	number := sys.DeviceNumber(info.Sys().(*syscall.Stat_t).Dev)
	if strings.HasPrefix(number, "0:") {
		t.Skip("the file system of temporary files is on no block device")
	}
	const sda = "sys/devices/sda/"
	disk := files{
		sda + "dev": "8:0", sda + "queue/write_cache": "write through",
		sda + "queue/rotational": "0", sda + "queue/scheduler": "[none] mq-deadline",
		sda + "alignment_offset": "0",
		sda + "sda1/dev":         number, sda + "sda1/partition": "1", sda + "sda1/start": "2048",
		sda + "sda1/size": "1000", sda + "sda1/alignment_offset": "0",
		"sys/dev/block/8:0":       "->../../devices/sda",
		"sys/dev/block/" + number: "->../../devices/sda/sda1",
	}
	mounted := func(options string) files {
		return files{
			"proc/self/mountinfo": "27 1 " + number + " / /srv rw - ext4 /dev/sda1 " + options,
		}
	}
	// the second one adds nothing
	at := Target{Storage: []Storage{{path, "namespace 1"}, {path, "namespace 2"}, {"/none", ""}}}
	for _, c := range []check{
		{"no disk", Machine.disks, nil, at, nil},
		{"disk", Machine.disks, disk, at, []string{"ok: sda, below namespace 1: no volatile"}},
		{
			"alignment", Machine.disks,
			with(disk, files{sda + "sda1/alignment_offset": "3584"}), at,
			[]string{
				"warning: sda1, below namespace 1: alignment_offset is 3584 | 1 MiB", "ok: sda",
			},
		},
		{
			"cache", Machine.disks, with(disk, files{sda + "queue/write_cache": "write back"}), at,
			[]string{"note: sda, below namespace 1: the volatile write cache is on"},
		},
		{
			"scheduler", Machine.disks, with(disk, files{sda + "queue/scheduler": "none " +
				"[bfq]"}), at,
			[]string{"note: the I/O scheduler is bfq | echo none > /sys/block/sda/queue/scheduler"},
		},
		{
			"rotational", Machine.disks, with(disk, files{
				sda + "queue/rotational": "1", sda + "queue/scheduler": "none [bfq]",
			}),
			at,
			[]string{"note: rotational"},
		},
		{"options", Machine.fileSystems, mounted("rw,relatime"), at, []string{"ok: no mount " +
			"option"}},
		{
			"journal", Machine.fileSystems, mounted("rw,data=journal"), at,
			[]string{"warning: /srv is mounted with data=journal | data=ordered"},
		},
		{
			"discard", Machine.fileSystems, mounted("rw,discard"), at,
			[]string{"note: /srv is mounted with discard | nodiscard"},
		},
		{"no file", Machine.fileSystems, nil, Target{}, nil},
		{"a device", Machine.fileSystems, nil, Target{Storage: []Storage{{os.DevNull, ""}}}, nil},
	} {
		c.test(t)
	}
}
