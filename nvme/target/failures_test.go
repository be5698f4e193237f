package target

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// TestDiskFull: writes that fail for lack of space are counted by that reason. They are logged once
// with the details for operators, and once more after a minute.
func TestDiskFull(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 2)
	writes := func(n int) {
		t.Helper()
		for i := range n {
			r.status(h.io[i%2], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)),
				nvme.CapacityExceeded|nvme.DNR)
		}
	}
	lines := func() (list []string) {
		for l := range strings.Lines(r.log.String()) {
			if strings.Contains(l, "no space left") {
				list = append(list, l)
			}
		}
		return list
	}
	dev.Fail(func(io *backend.IO) error {
		if io.Op == backend.OpWrite {
			return fmt.Errorf("pwrite: %w", backend.ErrNoSpace)
		}
		return nil
	})
	writes(146)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	l := lines()
	testutil.MustTrue(t, len(l) == 1, "%d lines: %v", len(l), l)
	for _, want := range []string{"subsystem=" + testSub, "nsid=1", "device=ram", "command=write"} {
		testutil.True(t, strings.Contains(lines()[0], want), "%s is not in %s", want, lines()[0])
	}
	r.w.Advance(time.Minute)
	writes(1)
	l = lines()
	testutil.True(t, len(l) == 2, "%d lines after a minute: %v", len(l), l)
	for _, e := range []error{backend.ErrIO, backend.ErrReadOnly, backend.ErrOffline} {
		dev.Fail(func(*backend.IO) error { return e })
		c := r.send(h.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
		r.w.Advance(time.Duration(notReadyDelay))
		r.until("the write fails", func() bool { return c.Done })
	}
	got := r.target.Stats()[0].Errors
	maps.DeleteFunc(got, func(_ string, n uint64) bool { return n == 0 })
	want := map[string]uint64{"no_space": 147, "io": 1, "read_only": 1, "offline": 1}
	testutil.True(t, maps.Equal(got, want), "counted %v, want %v", got, want)
	names := slices.Sorted(maps.Keys(r.target.Stats()[0].Errors))
	testutil.True(t, len(names) == dispatch.ErrorKinds,
		"reasons that have not occurred are missing: %v", names)
}

// sparse is a thin device that knows its free space.
type sparse struct {
	thinDevice
	err error
}

func (d *sparse) Space() (allocated, free int64, err error) {
	allocated, free, err = d.thinDevice.Space()
	if d.err == nil {
		free = 3 << 30
	}
	return allocated, free, err
}

// TestSpace: the space of thin namespaces is measured by CheckHealth, and unknown otherwise.
func TestSpace(t *testing.T) {
	dev := &sparse{thinDevice: thinDevice{Device: ramDevice(t, 1<<20, 512)}}
	dev.used.Store(5000)
	r := newHarness(t, 1, subsystemOf(testSub, dev, ramDevice(t, 1<<20, 512)))
	check := func(when string, allocated, free int64) {
		t.Helper()
		s := r.target.Stats()
		testutil.True(t, s[0].Allocated == allocated && s[0].Free == free,
			"%s: %d bytes allocated, %d free", when, s[0].Allocated, s[0].Free)
		testutil.True(t, s[1].Allocated == -1 && s[1].Free == -1,
			"%s: a namespace that is not thin: %d, %d", when, s[1].Allocated, s[1].Free)
	}
	check("before", -1, -1)
	r.target.CheckHealth()
	check("measured", 5000, 3<<30)
	dev.err = backend.ErrOffline
	r.target.CheckHealth()
	check("the file system does not answer", 5000, -1)
	dev.used.Store(-1)
	r.target.CheckHealth()
	check("offline", -1, -1)
}
