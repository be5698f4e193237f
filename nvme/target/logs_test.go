package target

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestLogsInDwords: every log page can be read in pieces, down to NUMD 0, one dword, and the pieces
// are those of the whole (M07).
func TestLogsInDwords(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	c := r.target.find(testSub).lookup(h.cntlid)
	for i := range logPages {
		p, lid := &logPages[i], nvme.LID(i)
		if p.size == 0 || !p.supported(c) || lid == nvme.LogSMART { // which counts such commands
			continue
		}
		size := int(p.size)
		r.run(fmt.Sprintf("log %02Xh", uint8(lid)), func(t *testing.T) {
			whole := r.ok(h.admin, logCommand(lid, size, 0)).Data
			for _, n := range []int{4, 12, 1000} {
				var got []byte
				for off := 0; off < size; off += n {
					got = append(got,
						r.ok(h.admin, logCommand(lid, min(n, size-off), uint64(off))).Data...)
				}
				if !bytes.Equal(got, whole) {
					t.Errorf("pieces of %d bytes differ from the whole", n)
				}
			}
			r.status(h.admin, logCommand(lid, 4, uint64(size)), invalidField)
		})
	}
}

// TestLogs: which pages exist, and the contents of the small ones (M06 to M08).
func TestLogs(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 2))
	h := r.connectHost(1)
	pages, err := nvme.Parse[nvme.SupportedPages](r.ok(h.admin,
		logCommand(nvme.LogSupportedPages, nvme.SupportedPagesSize, 0)).Data)
	if err != nil {
		t.Fatal(err)
	}
	for lid := range 256 {
		c := r.do(h.admin, logCommand(nvme.LID(lid), 512, 0))
		if ok := c.CQE.Status().OK(); ok != pages.Has(nvme.LID(lid)) {
			t.Errorf("log %02Xh: %v, listed %v", lid, c.CQE.Status(), !ok)
		} else if !ok && c.CQE.Status()&^nvme.More != nvme.InvalidLogPage|nvme.DNR {
			t.Errorf("log %02Xh: %v", lid, c.CQE.Status())
		}
	}
	fw, err := nvme.Parse[nvme.FirmwareLog](r.ok(h.admin,
		logCommand(nvme.LogFirmwareSlot, nvme.FirmwareLogSize, 0)).Data)
	if err != nil || fw.AFI != 1 || nvme.Text(fw.FRS[0][:]) != testFW {
		t.Errorf("firmware log: %v %+v", err, fw)
	}
	fids, err := nvme.Parse[nvme.FeatureEffectsLog](r.ok(h.admin,
		logCommand(nvme.LogFeatureEffects, nvme.FeatureEffectsSize, 0)).Data)
	if err != nil {
		t.Fatal(err)
	}
	for fid := range 256 {
		listed := fids[fid]&nvme.FeatureSupported != 0
		c := getFeature(nvme.FID(fid), nvme.FeatureCapabilities, 0)
		c.SQE.SetNSID(1)
		if known := r.do(h.admin, c).CQE.Status().OK(); known != listed {
			t.Errorf("feature %02Xh: listed %v, known %v", fid, listed, known)
		}
	}
}

// TestLogOffsets: offsets outside of a page and invalid fields are refused; bytes beyond the end
// are zero.
func TestLogOffsets(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 2))
	h := r.connectHost(1)
	nsid := func(c *fabrictest.Command, id uint32) *fabrictest.Command {
		c.SQE.SetNSID(id)
		return c
	}
	index := logCommand(nvme.LogSMART, 512, 0)
	index.SQE[58] |= 0x80
	huge := logCommand(nvme.LogSMART, 512, 0)
	huge.SQE.GetLog().Set(nvme.LogSMART, 16<<30, 0, 0, false)
	csi := logCommand(nvme.LogEffects, 4096, 0)
	csi.SQE[59] = 2
	for _, tc := range []struct {
		name string
		c    *fabrictest.Command
		want nvme.Status
	}{
		{"offset unaligned", logCommand(nvme.LogSMART, 4, 2), invalidField},
		{"offset at the end", logCommand(nvme.LogSMART, 4, 512), invalidField},
		{"offset beyond", logCommand(nvme.LogSMART, 4, 516), invalidField},
		{"offset 2^32", logCommand(nvme.LogSMART, 4, 1<<32), invalidField},
		{"offset 2^63", logCommand(nvme.LogSMART, 4, 1<<63), invalidField},
		{"offset 2^64-4", logCommand(nvme.LogSMART, 4, 1<<64-4), invalidField},
		{"offset as index", index, invalidField},
		{"NUMD 16 GiB", huge, invalidField},
		{"CSI", csi, invalidField},
		{"NSID of no namespace", nsid(logCommand(nvme.LogSMART, 512, 0), 77), invalidField},
		{"NSID for a controller log", nsid(logCommand(nvme.LogError, 512, 0), 1), invalidField},
	} {
		r.run(tc.name, func(t *testing.T) { r.status(h.admin, tc.c, tc.want) })
	}
	short := logCommand(nvme.LogSMART, 512, 0)
	short.Data = short.Data[:508]
	r.status(h.admin, short, invalidLength)

	// More than the page, and from its middle: the rest is zero.
	long := r.ok(h.admin, logCommand(nvme.LogFirmwareSlot, 4096, 8))
	if !bytes.HasPrefix(long.Data, []byte(testFW)) ||
		!bytes.Equal(long.Data[504:], make([]byte, 4096-504)) {
		t.Error("a long read of a log is wrong")
	}
}

// TestSMART: totals are right while queues exist, after they have ended, and after their namespace
// was removed.
func TestSMART(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 2))
	h := r.connectHost(2)
	buf := make([]byte, 64<<10)
	for range 40 {
		r.ok(h.io[0], rw(nvme.NVMWrite, 1, 0, 128, buf))
		r.ok(h.io[1], rw(nvme.NVMRead, 1, 0, 64, buf[:32<<10]))
	}
	r.ok(h.io[0], rw(nvme.NVMRead, 2, 0, 1, buf[:512]))
	r.status(h.io[0], rw(nvme.NVMRead, 3, 0, 1, buf[:512]), inactiveNamespace)
	expect := func(nsid uint32, unitsRead, unitsWritten, reads, writes uint64) {
		t.Helper()
		c := logCommand(nvme.LogSMART, 512, 0)
		c.SQE.SetNSID(nsid)
		l, err := nvme.Parse[nvme.SMARTLog](r.ok(h.admin, c).Data)
		want := [...]nvme.Uint128{
			nvme.MakeUint128(unitsRead), nvme.MakeUint128(unitsWritten), nvme.MakeUint128(reads),
			nvme.MakeUint128(writes),
		}
		if got := [...]nvme.Uint128{
			l.DataUnitsRead, l.DataUnitsWritten, l.HostReads,
			l.HostWrites,
		}; err != nil || got != want {
			t.Errorf("namespace %d: %v %v, want %v", nsid, err, got, want)
		}
		if l.AvailableSpare != 100 || l.CriticalWarning != 0 {
			t.Errorf("%+v", l)
		}
	}
	expect(nvme.NSIDAll, 3, 6, 41, 40) // 40*64+1 and 40*128 sectors
	expect(1, 3, 6, 40, 40)
	expect(2, 1, 0, 1, 0)
	h.hangUp()
	r.w.Settle()
	h = r.connectHost(0)
	expect(0, 3, 6, 41, 40)
	r.removeNamespace(1)
	expect(0, 3, 6, 41, 40)
}

// TestErrorLog: entries have the context of the command, newest first, in a ring of 64.
func TestErrorLog(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	h := r.connectHost(1)
	bad := r.do(h.io[0], rw(nvme.NVMRead, 1, 0x123456789, 1, make([]byte, 512)))
	if bad.CQE.Status()&nvme.More == 0 {
		t.Error("More is not set")
	}
	r.do(h.admin, identifyCommand(0x99, 7))
	b := r.ok(h.admin, logCommand(nvme.LogError, 64*64, 0)).Data
	first, _ := nvme.Parse[nvme.ErrorLogEntry](b)
	second, err := nvme.Parse[nvme.ErrorLogEntry](b[64:])
	third, _ := nvme.Parse[nvme.ErrorLogEntry](b[128:])
	if err != nil || first.Count != 2 || first.SQID != 0 || first.Opcode != nvme.AdminIdentify ||
		first.NSID != 7 {
		t.Errorf("newest: %v %+v", err, first)
	}
	if second.Count != 1 || second.SQID != 1 || second.CID != bad.SQE.CID() ||
		second.LBA != 0x123456789 || second.NSID != 1 ||
		nvme.Status(second.Status>>1).Code() != nvme.LBAOutOfRange ||
		second.TRTYPE != nvme.TransportTCP {
		t.Errorf("oldest: %+v", second)
	}
	if second.Location != 40 || second.Status != uint16(bad.CQE.Status())<<1 ||
		second.Version != 1 {
		t.Errorf("oldest: %+v", second)
	}
	if third.Count != 0 {
		t.Errorf("unused: %+v", third)
	}
	for range 100 {
		r.do(h.io[0], rw(nvme.NVMRead, 1, 1<<40, 1, make([]byte, 512)))
	}
	b = r.ok(h.admin, logCommand(nvme.LogError, 64*64, 0)).Data
	first, _ = nvme.Parse[nvme.ErrorLogEntry](b)
	last, _ := nvme.Parse[nvme.ErrorLogEntry](b[63*64:])
	if first.Count != 102 || last.Count != 39 {
		t.Errorf("ring from %d to %d, want 102 to 39", first.Count, last.Count)
	}
}

// TestEffectsLogAgrees: log 05h lists exactly the opcodes that are served (I06).
func TestEffectsLogAgrees(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1)
	l, err := nvme.Parse[nvme.EffectsLog](r.ok(h.admin, logCommand(nvme.LogEffects, 4096, 0)).Data)
	if err != nil {
		t.Fatal(err)
	}
	for op := range 256 {
		if nvme.Opcode(op) == nvme.FabricsOpcode {
			continue
		}
		c := r.do(h.io[0], command(nvme.Opcode(op), 0, nil))
		known := c.CQE.Status().Code() != nvme.InvalidOpcode
		if listed := l.IO[op]&nvme.EffectSupported != 0; known != listed {
			t.Errorf("I/O opcode %#x: listed %v, known %v", op, listed, known)
		}
		if (l.Admin[op] != 0) != (adminOps[op].execute != nil) {
			t.Errorf("admin opcode %#x: %#x", op, l.Admin[op])
		}
	}
	if l.IO[nvme.NVMWrite]&nvme.EffectContentChange == 0 {
		t.Error("Write does not change content")
	}
}
