package target

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// described is a device of 1 MiB with blocks of 512 bytes that describes itself as change says.
func described(t *testing.T, change func(*backend.Info)) *recorder {
	return &recorder{Device: ramDevice(t, 1<<20, 512), info: change}
}

// subsystemOf has a namespace on each device, from NSID 1 on.
func subsystemOf(nqn string, devs ...backend.Device) SubsystemConfig {
	c := SubsystemConfig{NQN: nqn, AllowAnyHost: true}
	for i, d := range devs {
		c.Namespaces = append(c.Namespaces, NamespaceConfig{NSID: uint32(i + 1), Device: d})
	}
	return c
}

// on selects the subsystem that a host connects to.
func on(nqn string) func(*connectArgs) { return func(a *connectArgs) { a.sub = nqn } }

func (h *host) controller() *nvme.IdentifyController {
	h.r.t.Helper()
	id, err := nvme.Parse[nvme.IdentifyController](h.r.ok(h.admin,
		identifyCommand(nvme.CNSController, 0)).Data)
	h.r.must(err)
	return id
}

func (h *host) namespace(nsid uint32) *nvme.IdentifyNamespace {
	h.r.t.Helper()
	id, err := nvme.Parse[nvme.IdentifyNamespace](h.r.ok(h.admin,
		identifyCommand(nvme.CNSNamespace, nsid)).Data)
	h.r.must(err)
	return id
}

// TestPhysicalBlock: a physical block larger than a logical one is reported as the unit that is
// written whole, within its boundaries, and as the preferred one (NVM sections 2.1.4.4 and
// 4.1.5.1). Linux takes the smaller of both for the physical block.
func TestPhysicalBlock(t *testing.T) {
	plain := described(t, func(i *backend.Info) { i.OptimalIO = 0 })
	emulated := described(t, func(i *backend.Info) { i.PhysicalBlockSize, i.OptimalIO = 4096, 0 })
	raid := described(t, func(i *backend.Info) {
		i.PhysicalBlockSize, i.OptimalIO = 4096, 256<<10
	})
	r := newHarness(t, 1, subsystemOf(testSub, plain, emulated, raid))
	h := r.connectHost(0)
	for _, tc := range []struct {
		nsid                        uint32
		features                    nvme.NSFEAT
		atomic, granularity, stripe uint16
	}{
		{1, 0, 0, 0, 0},
		{2, nvme.NSFEATAtomics | nvme.NSFEATOptimalIO, 7, 7, 7},
		{3, nvme.NSFEATAtomics | nvme.NSFEATOptimalIO, 7, 7, 511},
	} {
		id := h.namespace(tc.nsid)
		if id.NSFEAT != tc.features {
			t.Errorf("namespace %d: NSFEAT %#x, want %#x", tc.nsid, id.NSFEAT, tc.features)
		}
		atomics := []uint16{id.NAWUN, id.NAWUPF, id.NACWU, id.NABSN, id.NABSPF}
		if slices.Min(atomics) != tc.atomic || slices.Max(atomics) != tc.atomic ||
			id.NABO != 0 {
			t.Errorf("namespace %d: NAWUN, NAWUPF, NACWU, NABSN, NABSPF %v, NABO %d", tc.nsid,
				atomics, id.NABO)
		}
		if id.NPWG != tc.granularity || id.NPWA != tc.granularity || id.NOWS != tc.stripe {
			t.Errorf("namespace %d: NPWG %d, NPWA %d, NOWS %d", tc.nsid, id.NPWG, id.NPWA, id.NOWS)
		}
	}
	if c := h.controller(); c.AWUN != 0 || c.AWUPF != 0 {
		t.Errorf("AWUN %d, AWUPF %d: a write of that size may cross a boundary", c.AWUN, c.AWUPF)
	}
}

// TestDiscardOffered: Dataset Management is offered by controllers that have a namespace which can
// deallocate, or no namespace yet, and by no others.
func TestDiscardOffered(t *testing.T) {
	const mixed, none, empty = testSub + ":mixed", testSub + ":none", testSub + ":empty"
	disk := func() backend.Device {
		return described(t,
			func(i *backend.Info) { i.Discard = false })
	}
	r := newHarness(t, 1, subsystemOf(mixed, disk(), ramDevice(t, 1<<20, 512)),
		subsystemOf(none, disk()), subsystemOf(empty))
	for nqn, want := range map[string]bool{mixed: true, none: false, empty: true} {
		h := r.connectHost(1, on(nqn))
		if got := h.controller().ONCS&nvme.ONCSDatasetManagement != 0; got != want {
			t.Errorf("%s: ONCS offers Dataset Management: %v", nqn, got)
		}
		l, err := nvme.Parse[nvme.EffectsLog](r.ok(h.admin,
			logCommand(nvme.LogEffects, 4096, 0)).Data)
		r.must(err)
		if got := l.IO[nvme.NVMDatasetManagement] != 0; got != want {
			t.Errorf("%s: log 05h has Dataset Management: %v", nqn, got)
		}
		st := map[bool]nvme.Status{true: nvme.Success, false: invalidOpcode}[want]
		if nqn != empty {
			r.status(h.io[0], dsm(1, true, [2]uint64{0, 1}), st)
		}
	}
	h := r.connectHost(1, on(mixed))
	r.status(h.io[0], dsm(1, true, [2]uint64{2047, 2}), outOfRange)
	for _, s := range r.target.Stats() {
		if s.Discards != 0 || s.Errors["unsupported"] != 0 {
			t.Errorf("%s, namespace %d got %d discards, %d failed", s.SubNQN, s.NSID, s.Discards,
				s.Errors["unsupported"])
		}
	}
}

// TestRotational: a namespace on rotational media is an endurance group with the logs and the
// feature that come with it (Base section 8.1.23).
func TestRotational(t *testing.T) {
	hdd := described(t, func(i *backend.Info) { i.Rotational = true })
	r := newHarness(t, 1, subsystemOf(testSub, ramDevice(t, 1<<20, 512), hdd))
	h := r.connectHost(1)
	r.ok(h.io[0], rw(nvme.NVMWrite, 2, 0, 2048, make([]byte, 1<<20)))
	id := h.controller()
	if id.CTRATT&nvme.CTRATTEnduranceGroups == 0 || id.ENDGIDMAX < 2 {
		t.Errorf("CTRATT %#x, ENDGIDMAX %d", id.CTRATT, id.ENDGIDMAX)
	}
	for nsid, group := range map[uint32]uint16{1: 0, 2: 2} {
		var features nvme.IndependentNSFEAT
		if group != 0 {
			features = nvme.IndependentRotational
		}
		ind, err := nvme.Parse[nvme.IdentifyNamespaceIndependent](r.ok(h.admin,
			identifyCommand(nvme.CNSIndependentNamespace, nsid)).Data)
		if err != nil || ind.NSFEAT != features || ind.ENDGID != group ||
			h.namespace(nsid).ENDGID != group {
			t.Errorf("namespace %d: NSFEAT %#x, ENDGID %d (%v)", nsid, ind.NSFEAT, ind.ENDGID, err)
		}
	}
	list := func(from uint16) []byte {
		c := identifyCommand(nvme.CNSEnduranceGroups, 0)
		binary.LittleEndian.PutUint16(c.SQE[44:], from)
		return r.ok(h.admin, c).Data[:6]
	}
	for from, want := range map[uint16]string{
		0: "\x01\x00\x02\x00\x00\x00", 2: "\x01\x00\x02\x00\x00\x00", 3: "\x00\x00\x00\x00\x00\x00",
	} {
		if got := list(from); string(got) != want {
			t.Errorf("CNS 19h from %d: % x", from, got)
		}
	}
	group := func(lid nvme.LID, id uint16) *fabrictest.Command {
		c := logCommand(lid, 512, 0)
		binary.LittleEndian.PutUint16(c.SQE[46:], id)
		return c
	}
	eg, err := nvme.Parse[nvme.EnduranceGroupLog](r.ok(h.admin,
		group(nvme.LogEnduranceGroup, 2)).Data)
	u := nvme.MakeUint128
	if err != nil || eg.EGFEAT != nvme.EGFEATRotational || eg.AvailableSpare != 100 ||
		eg.HostWrites != u(1) || eg.DataUnitsWritten != u(1) || eg.Capacity != u(1<<20) {
		t.Errorf("log 09h: %+v, %v", eg, err)
	}
	rot, err := nvme.Parse[nvme.RotationalMediaLog](r.ok(h.admin,
		group(nvme.LogRotationalMedia, 2)).Data)
	if err != nil || *rot != (nvme.RotationalMediaLog{ENDGID: 2, NUMA: 1}) {
		t.Errorf("log 16h: %+v, %v", rot, err)
	}
	for _, id := range []uint16{0, 1, 3, 0xFFFF} {
		r.status(h.admin, group(nvme.LogEnduranceGroup, id), invalidField)
		r.status(h.admin, group(nvme.LogRotationalMedia, id), invalidField)
	}
	r.ok(h.admin, setFeature(nvme.FeatureSpinupControl, 0))
	r.status(h.admin, setFeature(nvme.FeatureSpinupControl, 1), invalidField)
}

// TestNoRotational: without rotational media no endurance groups are reported.
func TestNoRotational(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	if id := h.controller(); id.CTRATT&nvme.CTRATTEnduranceGroups != 0 || id.ENDGIDMAX != 0 {
		t.Errorf("CTRATT %#x, ENDGIDMAX %d", id.CTRATT, id.ENDGIDMAX)
	}
	if id := h.namespace(1); id.ENDGID != 0 {
		t.Errorf("ENDGID %d", id.ENDGID)
	}
	for _, lid := range []nvme.LID{nvme.LogEnduranceGroup, nvme.LogRotationalMedia} {
		r.status(h.admin, logCommand(lid, 512, 0), nvme.InvalidLogPage|nvme.DNR)
	}
	r.status(h.admin, identifyCommand(nvme.CNSEnduranceGroups, 0), invalidField)
	r.status(h.admin, setFeature(nvme.FeatureSpinupControl, 0), invalidField)
}
