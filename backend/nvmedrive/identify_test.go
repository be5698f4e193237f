package nvmedrive

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/block"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/passthrutest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestRefusals: each error describes the problem and the fix.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		want   string
		change func(d *passthrutest.Drive)
	}{
		{"8 bytes of metadata", func(d *passthrutest.Drive) {
			d.Namespace.FLBAS, d.Namespace.LBAF[17] = 1<<5|1, nvme.LBAFormat{MS: 8, LBADS: 12}
		}},
		{"protection information", func(d *passthrutest.Drive) { d.Namespace.DPS = 1 }},
		{"not active", func(d *passthrutest.Drive) { d.Namespace = nvme.IdentifyNamespace{} }},
		{"2^17", func(d *passthrutest.Drive) { d.Namespace.LBAF[0].LBADS = 17 }},
		{"DULBE", func(d *passthrutest.Drive) { d.Features = map[uint8]uint32{5: 1<<16 | 100} }},
		{"CAP_SYS_ADMIN", func(d *passthrutest.Drive) { d.Fault = errno(unix.EACCES) }},
		{"use backend: block", func(d *passthrutest.Drive) { d.Fault = errno(unix.ENOTTY) }},
		{"Invalid Namespace", func(d *passthrutest.Drive) {
			d.Fault = func(uintptr, *nvme.SQE) (nvme.Status, syscall.Errno) {
				return nvme.InvalidNamespaceOrFormat, 0
			}
		}},
	} {
		d := newDrive(9)
		tc.change(d)
		_, err := identify(d, passthrutest.NSID)
		testutil.True(t, err != nil && strings.Contains(refused(err).Error(), tc.want), "%q: %v",
			tc.want, err)
	}
}

func errno(e syscall.Errno) func(uintptr, *nvme.SQE) (nvme.Status, syscall.Errno) {
	return func(uintptr, *nvme.SQE) (nvme.Status, syscall.Errno) { return 0, e }
}

func TestDescribe(t *testing.T) {
	d := newDrive(9)
	id := testutil.Value(identify(d, passthrutest.NSID))(t)
	kernel := backend.Info{
		Size: int64(id.ns.NSZE) << 9, BlockSize: 512, PhysicalBlockSize: 4096,
		DiscardZeroes: true,
	}
	for _, tc := range []struct {
		what     string
		change   func()
		l, want  limits
		physical int
		volatile bool
	}{
		{"as it is", func() {}, free, free, 512, true},
		{
			"MDTS", func() { id.ctrl.MDTS, id.ctrl.VWC = 3, 0 }, free,
			limits{32 << 10, free.zeroes, free.discard},
			512, false,
		},
		{"not in blocks", func() {}, limits{5000, 513, 1025}, limits{4608, 512, 1024}, 512, false},
		{
			"NLB", func() { id.ctrl.MDTS = 0 },
			limits{1 << 40, 1 << 40, 1 << 40},
			limits{32 << 20, 32 << 20, 1 << 30},
			512, false,
		},
		{"AWUPF", func() { id.ctrl.AWUPF = 3 }, free, free, 2048, false},
		{
			"NAWUPF", func() { id.ns.NSFEAT, id.ns.NAWUPF = nvme.NSFEATAtomics, 254 }, free, free,
			4096, false,
		},
		{"NABSPF", func() { id.ns.NABSPF = 1 }, free, free, 1024, false},
		{"NABO", func() { id.ns.NABO = 1 }, free, free, 512, false},
	} {
		tc.change()
		dc := disk.Config{Info: kernel}
		if err := newDriver(d, id, tc.l, &dc); err != nil {
			t.Errorf("%s: %v", tc.what, err)
			continue
		}
		i := dc.Info
		testutil.True(t, dc.Driver.(*driver).limits == tc.want &&
			i.PhysicalBlockSize == tc.physical && i.VolatileCache == tc.volatile && i.Discard &&
			!i.DiscardZeroes, "%s: %+v, %+v", tc.what, dc.Driver, i)
	}
	kernel.Size /= 2
	testutil.Fails(t, newDriver(d, id, free, &disk.Config{Info: kernel}), "rescan", "another size")
}

// TestNamed: the devices of a namespace are in one directory, numbered by controller or by
// subsystem.
func TestNamed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"nvme5/ng5n2", "nvme5/nvme0n2/nvme0n2p1", "nvme5/ng5n1", "nvme5/nvme0n1", "nvme5/nvme0c5n2",
		"nvme-subsys1/ng1n12", "nvme-subsys1/nvme1n12",
		"nvme7/nvme7n1", "nvme8/ng8n1",
	} {
		testutil.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	for _, row := range testutil.Rows(t, "named") {
		var tc struct{ place, kind, want string }
		row.Scan(&tc.place, &tc.kind, &tc.want)
		n, err := named(filepath.Join(dir, tc.place), tc.kind)
		got := n.Char + " " + n.Block
		if err != nil {
			got = err.Error()
		} else if n.sysfs != filepath.Join(dir, filepath.Dir(tc.place), filepath.Base(n.Block)) {
			t.Errorf("%s: its queue is in %s", tc.place, n.sysfs)
		}
		testutil.Equal(t, got, tc.want, "%s", tc.place)
	}
}

// TestOpenRefuses: Open refuses a path that is not an NVMe namespace, and Probe reports it
// beforehand.
func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		"": "no path", "/dev/ng999n9": "no such device", file: "use backend: file",
		t.TempDir(): "is not a device", os.DevNull: "not a namespace of an NVMe drive",
	} {
		_, err := Open(block.Config{Path: path})
		testutil.True(t, err != nil && strings.Contains(err.Error(), want) &&
			strings.HasPrefix(err.Error(), "NVMe namespace "+path), "%q: %v", path, err)
		r := Probe(block.Config{Path: path})
		testutil.True(t, len(r.Errors) == 1 && strings.Contains(r.Errors[0].What, want), "%q: %+v",
			path, r)
	}
}
