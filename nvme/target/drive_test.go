package target

import (
	"errors"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// testDrive is an admin.Drive that reports the log and the error of the test.
type testDrive struct {
	id     string
	counts bool

	mu  sync.Mutex
	log nvme.SMARTLog
	err error
}

func (d *testDrive) ID() string   { return d.id }
func (d *testDrive) Counts() bool { return d.counts }
func (d *testDrive) SMART() (*nvme.SMARTLog, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.log
	return &l, d.err
}

func (d *testDrive) set(fn func(l *nvme.SMARTLog), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn(&d.log)
	d.err = err
}

func u128(v uint64) nvme.Uint128 { return nvme.MakeUint128(v) }

// onDrives is a subsystem with a namespace on each of the drives; nil is one without.
func onDrives(t *testing.T, drives ...admin.Drive) subsystems.Config {
	sub := ramSubsystem(t, len(drives))
	for i, d := range drives {
		sub.Namespaces[i].Drive = d
	}
	return sub
}

func (r *harness) smart(h *host, nsid uint32) nvme.SMARTLog {
	r.t.Helper()
	c := logCommand(nvme.LogSMART, 512, 0)
	c.SQE.SetNSID(nsid)
	l := testutil.Value(nvme.Parse[nvme.SMARTLog](r.ok(h.admin, c).Data))(r.t)
	return *l
}

// full is a log with a different value in each field.
func full(n uint8) nvme.SMARTLog {
	v := uint64(n) * 100
	l := nvme.SMARTLog{
		Temperature: 300 + uint16(n), AvailableSpare: 100 - n, SpareThreshold: 10,
		PercentageUsed: n, EnduranceWarnings: 1 << (n % 8),
		DataUnitsRead: u128(v + 1), DataUnitsWritten: u128(v + 2), HostReads: u128(v + 3),
		HostWrites: u128(v + 4), BusyTime: u128(v + 5),
		PowerCycles: u128(v + 6), PowerOnHours: u128(v + 7), UnsafeShutdowns: u128(v + 8),
		MediaErrors: u128(v + 9), ErrorLogEntries: u128(v + 10),
		WarningTempTime: uint32(v + 11), CriticalTempTime: uint32(v + 12),
		TemperatureSensor:  [8]uint16{uint16(n), 7: uint16(n)},
		ThermalTransitions: [2]uint32{uint32(v), uint32(v + 1)},
		ThermalTime:        [2]uint32{uint32(v + 2), uint32(v + 3)},
	}
	l.DataUnitsRead[15] = n // above 64 bits
	return l
}

// TestDriveHealth: the log of one drive is the drive's own, independent of reads through the
// target. The log of several drives has the sums and the worst values.
func TestDriveHealth(t *testing.T) {
	a, b := &testDrive{id: "a", counts: true, log: full(1)},
		&testDrive{id: "b", counts: true, log: full(2)}
	b.log.CriticalWarning = nvme.SMARTSpareLow
	r, h := joined(t, 1, 1, onDrives(t, a, a, b))
	for range 3 {
		r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	}
	for nsid, want := range map[uint32]nvme.SMARTLog{1: a.log, 2: a.log, 3: b.log} {
		l := r.smart(h, nsid)
		testutil.True(t, l == want, "namespace %d: %+v\nwant %+v", nsid, l, want)
	}
	want := full(2) // the worst values; the loop adds up the counts
	want.CriticalWarning, want.EnduranceWarnings = nvme.SMARTSpareLow, 2|4
	for _, sum := range []struct{ to, a *nvme.Uint128 }{
		{&want.DataUnitsRead, &a.log.DataUnitsRead},
		{&want.DataUnitsWritten, &a.log.DataUnitsWritten},
		{&want.HostReads, &a.log.HostReads},
		{&want.HostWrites, &a.log.HostWrites},
		{&want.BusyTime, &a.log.BusyTime},
		{&want.UnsafeShutdowns, &a.log.UnsafeShutdowns},
		{&want.MediaErrors, &a.log.MediaErrors},
		{&want.ErrorLogEntries, &a.log.ErrorLogEntries},
	} {
		*sum.to = sum.to.Add(*sum.a)
	}
	l := r.smart(h, nvme.NSIDAll)
	testutil.True(t, l == want, "the subsystem: %+v\nwant %+v", l, want)
}

// TestDriveAndMemory: the target counts for drives that do not count, and for namespaces without a
// drive.
func TestDriveAndMemory(t *testing.T) {
	sata, silent := &testDrive{
		id:  "sata",
		log: nvme.SMARTLog{Temperature: 310, AvailableSpare: 90, PowerOnHours: u128(50)},
	},
		&testDrive{id: "silent", err: errors.New("no answer")}
	r, h := joined(t, 1, 1, onDrives(t, sata, nil, silent))
	for nsid, n := range map[uint32]int{1: 2, 2: 3, 3: 4} {
		for range n {
			r.ok(h.io[0], rw(nvme.NVMRead, nsid, 0, 1, make([]byte, 512)))
		}
	}
	for nsid, want := range map[uint32]nvme.SMARTLog{
		1: {
			Temperature: 310, AvailableSpare: 90, PowerOnHours: u128(50),
			HostReads: u128(2), DataUnitsRead: u128(1),
		},
		2: {AvailableSpare: 100, PowerCycles: u128(1), HostReads: u128(3), DataUnitsRead: u128(1)},
		3: {AvailableSpare: 100, PowerCycles: u128(1), HostReads: u128(4), DataUnitsRead: u128(1)},
		nvme.NSIDAll: {
			Temperature: 310, AvailableSpare: 90, PowerOnHours: u128(50),
			PowerCycles: u128(1), HostReads: u128(9), DataUnitsRead: u128(1),
		},
	} {
		l := r.smart(h, nsid)
		testutil.True(t, l == want, "namespace %#x: %+v\nwant %+v", nsid, l, want)
	}
}

// TestEventDuringSlowLog: an event is not lost if it happens while the target asks a drive for the
// health log. Reading that log ends the masking of the event.
func TestEventDuringSlowLog(t *testing.T) {
	d := hangingDrive{make(chan struct{}), make(chan struct{})}
	r, h := joined(t, 1, 1, onDrives(t, d))
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventReliability)))
	raise := func() {
		r.target.find(testSub).each(func(c *controller) {
			c.h.post(func() { c.Raise(admin.EventReliability) })
		})
		r.w.Settle()
	}
	aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	raise()
	testutil.MustTrue(t, aer.Done, "no event")
	aer = r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	log := r.send(h.admin, logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0))
	r.during(func() error {
		<-d.asked
		return nil
	})
	raise()
	close(d.release)
	r.until("the log is read", func() bool { return log.Done })
	r.w.Settle()
	testutil.True(t, aer.Done, "the event is lost")
}
