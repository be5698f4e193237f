package target

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/backendtest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestDegraded: a flush that fails permanently makes the namespace read-only, sets a warning in the
// health log, and notifies hosts that have enabled the events.
func TestDegraded(t *testing.T) {
	sub := ramSubsystem(t, 1)
	bad := backendtest.NewFaulty(ramDeviceOpen(t, 1<<20, 512))
	closeLast(t, bad)
	sub.Namespaces = append(sub.Namespaces, NamespaceConfig{NSID: 2, Device: bad})
	r := newHarness(t, 2, sub)
	h := r.connectHost(2)
	warning := func(nsid uint32) uint8 {
		t.Helper()
		c := logCommand(nvme.LogSMART, 512, 0)
		c.SQE.SetNSID(nsid)
		l, err := nvme.Parse[nvme.SMARTLog](r.ok(h.admin, c).Data)
		if err != nil {
			t.Fatal(err)
		}
		return l.CriticalWarning
	}
	if oaes := r.ok(h.admin, identifyCommand(nvme.CNSController, 0)).Data[92:96]; oaes[0] != 0 {
		t.Errorf("OAES %x lists warnings of the health log", oaes)
	}
	r.ok(h.admin,
		setFeature(nvme.FeatureAsyncEventConfig,
			uint32(nvme.EventReliability|nvme.EventNamespaceChanged)))
	events := []nvme.AsyncEvent{}
	one, two := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil)),
		r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))

	fault := func(io *backend.IO) error {
		if io.Op == backend.OpFlush {
			return backend.ErrDegraded
		}
		return nil
	}
	bad.Fail(func(io *backend.IO) error {
		if io.Op == backend.OpFlush {
			return backend.ErrIO // for once
		}
		return nil
	})
	r.status(h.io[0], command(nvme.NVMFlush, 2, nil), nvme.WriteFault)
	if w := warning(nvme.NSIDAll); w != 0 || one.Done {
		t.Errorf("warning %#x and event %v for a transient error", w, one.Done)
	}
	bad.Fail(fault)
	r.status(h.io[0], command(nvme.NVMFlush, 2, nil), nvme.WriteFault)
	r.w.Settle()
	if !one.Done || !two.Done {
		t.Fatalf("events: %v %v", one.Done, two.Done)
	}
	events = append(events, nvme.AsyncEvent(one.CQE.DW0()), nvme.AsyncEvent(two.CQE.DW0()))
	if events[0] != nvme.AsyncNamespaceChanged || events[1] != nvme.AsyncReliability {
		t.Errorf("events %#x", events)
	}
	for nsid, want := range map[uint32]uint8{
		1: 0, 2: nvme.SMARTReliability | nvme.SMARTReadOnly,
		nvme.NSIDAll: nvme.SMARTReliability,
	} {
		if w := warning(nsid); w != want {
			t.Errorf("namespace %#x: warning %#x, want %#x", nsid, w, want)
		}
	}
	buf := make([]byte, 512)
	r.status(h.io[1], rw(nvme.NVMWrite, 2, 0, 1, buf), writeProtected)
	r.status(h.io[1], command(nvme.NVMFlush, 2, nil), nvme.WriteFault)
	r.status(h.io[1], command(nvme.NVMFlush, nvme.NSIDAll, nil), nvme.WriteFault)
	r.ok(h.io[1], rw(nvme.NVMRead, 2, 0, 1, buf))
	r.ok(h.io[1], rw(nvme.NVMWrite, 1, 0, 1, buf))
	if n := strings.Count(r.log.String(), "writes that it had accepted may be lost"); n != 1 {
		t.Errorf("%d lines in the log, want one", n)
	}
	if !errors.Is(backend.ErrDegraded, backend.ErrIO) {
		t.Error("ErrDegraded is not an ErrIO")
	}
}

// TestErrorLogContext: what an entry says about the command.
func TestErrorLogContext(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1)
	dsm := command(nvme.NVMDatasetManagement, 1, make([]byte, 16))
	dsm.SQE.SetCDW64(10, 0x4_000000FF) // attributes and number of ranges, no LBA
	for _, tc := range []struct {
		name     string
		run      func()
		location uint16
		lba      uint64
	}{
		{"opcode", func() { r.do(h.io[0], command(0x7E, 1, nil)) }, 0, 0},
		{"PRP", func() {
			c := rw(nvme.NVMRead, 1, 5, 1, make([]byte, 512))
			c.SQE.SetFlags(0)
			r.do(h.io[0], c)
		}, 1, 5},
		{
			"namespace", func() { r.do(h.io[0], rw(nvme.NVMWrite, 9, 7, 1, make([]byte, 512))) }, 4,
			7,
		},
		{"length", func() { r.do(h.io[0], rw(nvme.NVMRead, 1, 3, 2, make([]byte, 512))) }, 32, 3},
		{
			"LBA", func() { r.do(h.io[0], rw(nvme.NVMRead, 1, 1<<40, 1, make([]byte, 512))) }, 40,
			1 << 40,
		},
		{"ranges", func() { r.do(h.io[0], dsm) }, 32, 0},
		{"log page", func() { r.do(h.admin, logCommand(0xEE, 512, 0)) }, 40, 0},
		{"unsaveable", func() {
			c := setFeature(nvme.FeatureAsyncEventConfig, 0)
			c.SQE.SetCDW(10, c.SQE.CDW(10)|1<<31)
			r.do(h.admin, c)
		}, 7<<8 | 43, 0},
	} {
		tc.run()
		e, err := nvme.Parse[nvme.ErrorLogEntry](r.ok(h.admin,
			logCommand(nvme.LogError, 64, 0)).Data)
		if err != nil || e.Location != tc.location || e.LBA != tc.lba {
			t.Errorf("%s: %v %+v, want location %#x, LBA %#x", tc.name, err, e, tc.location, tc.lba)
		}
	}
}

// TestErrorLogPlace: an entry has the first block that failed, if the device knows it, and the
// entry of the next command does not.
func TestErrorLogPlace(t *testing.T) {
	bad := backendtest.NewFaulty(ramDeviceOpen(t, 1<<20, 4096))
	closeLast(t, bad)
	sub := ramSubsystem(t, 1)
	sub.Namespaces = append(sub.Namespaces, NamespaceConfig{NSID: 2, Device: bad})
	r := newHarness(t, 2, sub)
	h := r.connectHost(1)
	lba := func() uint64 {
		e, err := nvme.Parse[nvme.ErrorLogEntry](r.ok(h.admin,
			logCommand(nvme.LogError, 64, 0)).Data)
		if err != nil {
			t.Fatal(err)
		}
		return e.LBA
	}
	for _, tc := range []struct {
		err  error
		want uint64
	}{
		{&backend.Fault{Off: 7*4096 + 512, Err: backend.ErrIO}, 7},
		{fmt.Errorf("wrapped: %w", &backend.Fault{Off: 8 * 4096, Err: backend.ErrNoSpace}), 8},
		{backend.ErrIO, 5},
	} {
		bad.Fail(func(*backend.IO) error { return tc.err })
		r.do(h.io[0], rw(nvme.NVMRead, 2, 5, 4, make([]byte, 4*4096)))
		if got := lba(); got != tc.want {
			t.Errorf("%v: block %d, want %d", tc.err, got, tc.want)
		}
		r.do(h.io[0], rw(nvme.NVMRead, 2, 1<<40, 1, make([]byte, 4096)))
		if got := lba(); got != 1<<40 {
			t.Errorf("out of range after %v: block %d", tc.err, got)
		}
	}
}
