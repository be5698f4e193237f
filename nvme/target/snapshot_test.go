package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestStats: the counters, the state and the health of namespaces.
func TestStats(t *testing.T) {
	nvmeDrive := &testDrive{id: "a", counts: true, log: full(1)}
	sata := &testDrive{id: "sata", log: nvme.SMARTLog{Temperature: 310, AvailableSpare: 100}}
	r, h := joined(t, 1, 1, onDrives(t, nvmeDrive, sata, nil))
	for range 3 {
		r.ok(h.io[0], rw(nvme.NVMRead, 2, 0, 2, make([]byte, 1024)))
	}
	r.ok(h.io[0], rw(nvme.NVMWrite, 2, 0, 4, make([]byte, 2048)))
	r.ok(h.io[0], command(nvme.NVMFlush, 2, nil))
	for range 2 {
		r.ok(h.io[0], rw(nvme.NVMWriteZeroes, 2, 0, 4, nil))
	}
	r.ok(h.io[0], dsm(2, true, [2]uint64{0, 1}, [2]uint64{4, 1}, [2]uint64{8, 0}, [2]uint64{9, 2}))
	for _, s := range r.target.Stats() {
		testutil.True(t, s.Drive == nil || s.Drive.Answered.IsZero(),
			"the drive of namespace %d was asked", s.NSID)
	}

	r.target.CheckHealth()
	list := r.target.Stats()
	testutil.MustTrue(t, len(list) == 3, "%+v", list)
	a, b, c := list[0], list[1], list[2]
	testutil.True(t, a.NSID == 1 && a.Drive.Counts && a.Drive.ID == "a" &&
		!a.Drive.Answered.IsZero() && *a.Health == full(1), "a drive: %+v, %+v, %+v", a, a.Drive,
		a.Health)
	testutil.True(t, b.Reads == 3 && b.ReadBytes == 3072 && b.Writes == 1 &&
		b.WrittenBytes == 2048 && b.BlockSizeBytes == 512 && b.SizeBytes != 0 && b.Ready,
		"counters: %+v", b)
	testutil.True(t, b.Flushes == 1 && b.WriteZeroes == 2 && b.Discards == 3 && c.Flushes == 0,
		"counters: %+v, another namespace: %+v", b, c)
	testutil.True(t, b.Health.HostReads == u128(3) && b.Health.Temperature == 310,
		"the drive does not count: %+v", b.Health)
	testutil.True(t, c.Drive == nil && c.Health.CriticalWarning == 0 && !c.Degraded &&
		!c.WriteProtected, "no drive: %+v, %+v", c, c.Health)

	ns := r.target.find(testSub).Namespaces.Load().Get(3)
	r.raw[0].channelTo(ns).failed(&backend.IO{Err: backend.ErrDegraded})
	if c := r.target.Stats()[2]; !c.Degraded || !c.WriteProtected ||
		c.Health.CriticalWarning != nvme.SMARTReliability|nvme.SMARTReadOnly {
		t.Errorf("degraded: %+v, %+v", c, c.Health)
	}
}

// hangingDrive does not answer until it is released.
type hangingDrive struct{ asked, release chan struct{} }

func (d hangingDrive) ID() string   { return "hangs" }
func (d hangingDrive) Counts() bool { return true }
func (d hangingDrive) SMART() (*nvme.SMARTLog, error) {
	close(d.asked)
	<-d.release
	return &nvme.SMARTLog{Temperature: 300}, nil
}

// TestStatsWaitForNoDrive: Stats does not wait for a drive that does not answer. It returns the
// values known without it.
func TestStatsWaitForNoDrive(t *testing.T) {
	d := hangingDrive{make(chan struct{}), make(chan struct{})}
	r := newHarness(t, 1, onDrives(t, d))
	checked := make(chan struct{})
	go func() {
		r.target.CheckHealth()
		close(checked)
	}()
	<-d.asked
	s := r.target.Stats()[0]
	testutil.True(t, s.Drive.Answered.IsZero() && s.Health.Temperature == 0 &&
		s.Health.AvailableSpare == 100, "%+v, %+v", s.Drive, s.Health)
	close(d.release)
	<-checked
	if s := r.target.Stats()[0]; s.Drive.Answered.IsZero() || s.Health.Temperature != 300 {
		t.Errorf("%+v, %+v", s.Drive, s.Health)
	}
}
