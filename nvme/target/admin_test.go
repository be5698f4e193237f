package target

import (
	"bytes"
	"testing"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/fabric/loop"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestIdentifyController checks what a Linux host needs to connect and to work well.
func TestIdentifyController(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.Serial, sub.Model = "SN-1", "model"
	r := newRig(t, 1, sub)
	for _, tr := range []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA} {
		for _, disc := range []bool{false, true} {
			qi := info(tr)
			qi.MSDBD, qi.InCapsuleSize = 16, 8192
			h := r.connectHostInfo(0, qi, func(a *connectArgs) {
				if disc {
					a.sub = nvme.DiscoveryNQN
				}
			})
			c := r.ok(h.admin, identifyCommand(nvme.CNSController, 0))
			id, err := nvme.ParseIdentifyController(c.Data)
			if err != nil {
				t.Fatal(err)
			}
			check := func(name string, got, want any) {
				t.Helper()
				if got != want {
					t.Errorf("%v discovery %v: %s is %v, want %v", tr, disc, name, got, want)
				}
			}
			check("CNTLID", id.CNTLID, h.cntlid)
			check("KAS", id.KAS, uint16(keepAliveGranularity))
			check("IOCCSZ", id.IOCCSZ, uint32((64+8192)/16))
			check("IORCSZ", id.IORCSZ, uint32(1))
			check("ICDOFF", id.ICDOFF, uint16(0))
			check("MSDBD", id.MSDBD, uint8(16))
			check("MDTS", 4096<<id.MDTS, maxTransfer)
			check("MAXCMD", id.MAXCMD, uint16(128))
			check("TBKAS", id.CTRATT&nvme.CTRATTTBKAS != 0, true)
			check("VER", uint64(id.VER), h.property(nvme.PropertyVS))
			check("SGL", id.SGLS&3, nvme.SGLSSupported)
			check("keyed SGL", id.SGLS&nvme.SGLSKeyed != 0, tr == nvme.TransportRDMA)
			check("SAOS", id.SGLS&nvme.SGLSOffset != 0, true)
			check("OFCS", id.OFCS&1, uint16(1))
			check("FR", nvme.Text(id.FR[:]), testFW)
			check("AERL", id.AERL, uint8(3))
			check("CMIC", id.CMIC&nvme.CMICMultiController != 0, true)
			check("effects log", id.LPA&nvme.LPAEffects != 0, true)
			subnqn, _ := nvme.ParseNQN(&id.SUBNQN)
			if disc {
				check("CNTRLTYPE", id.CNTRLTYPE, nvme.ControllerTypeDiscovery)
				check("SUBNQN", subnqn, nvme.DiscoveryNQN)
				check("OAES", id.OAES, nvme.EventDiscoveryChanged)
				check("DCTYPE", id.DCTYPE, uint8(1))
				continue
			}
			check("CNTRLTYPE", id.CNTRLTYPE, nvme.ControllerTypeIO)
			check("SUBNQN", subnqn, testSub)
			check("SN", nvme.Text(id.SN[:]), "SN-1")
			check("MN", nvme.Text(id.MN[:]), "model")
			check("OAES", id.OAES, nvme.EventNamespaceChanged)
			check("NN", id.NN, uint32(MaxNSID))
			check("MNAN", id.MNAN, uint32(MaxNSID))
			check("SQES", id.SQES, uint8(0x66))
			check("CQES", id.CQES, uint8(0x44))
			check("ONCS", id.ONCS, nvme.ONCSDatasetManagement|nvme.ONCSWriteZeroes|nvme.ONCSSaveSelect)
			check("VWC", id.VWC, nvme.VWCFlushAll) // RAM has no volatile cache
		}
	}
}

// TestIdentifyNamespaces has the rows M02 to M05 and the namespace structures.
func TestIdentifyNamespaces(t *testing.T) {
	sub := ramSubsystem(t, 3)
	sub.Namespaces[1] = NamespaceConfig{
		NSID: 5, Device: ramDevice(t, 8<<20, 4096), UUID: uuid.UUID{1}, NGUID: [16]byte{2}, EUI64: [8]byte{3}, ReadOnly: true,
	}
	r := newRig(t, 1, sub, SubsystemConfig{NQN: testSub + "2", Namespaces: []NamespaceConfig{{NSID: 1, Device: ramDevice(t, 1<<20, 512)}}})
	h := r.connectHost(0)
	get := func(cns nvme.CNS, nsid uint32) []byte { return r.ok(h.admin, identifyCommand(cns, nsid)).Data }

	id, err := nvme.ParseIdentifyNamespace(get(nvme.CNSNamespace, 5))
	if err != nil || id.NSZE != 2048 || id.NCAP != 2048 || id.NUSE != 2048 || id.Format().LBADS != 12 || id.NMIC != nvme.NMICShared ||
		id.NSATTR != nvme.NSATTRWriteProtected || id.NGUID != [16]byte{2} || id.EUI64 != [8]byte{3} ||
		id.DLFEAT != nvme.DLFEATReadsZeroes|nvme.DLFEATWriteZeroes {
		t.Errorf("namespace 5: %v %+v", err, id)
	}
	ids, err := nvme.ParseNamespaceIDs(get(nvme.CNSDescriptors, 5))
	if err != nil || len(ids) != 4 || ids[0].ID[0] != 3 || ids[1].ID[0] != 2 || ids[2].ID[0] != 1 || ids[3].Type != nvme.IDTypeCSI {
		t.Errorf("descriptors of namespace 5: %v %v", err, ids)
	}
	derived, _ := nvme.ParseNamespaceIDs(get(nvme.CNSDescriptors, 1))
	other, _ := nvme.ParseNamespaceIDs(get(nvme.CNSDescriptors, 3))
	plain, _ := nvme.ParseIdentifyNamespace(get(nvme.CNSNamespace, 1))
	if len(derived) != 3 || !bytes.Equal(derived[0].ID, plain.NGUID[:]) || bytes.Equal(derived[0].ID, other[0].ID) {
		t.Errorf("derived identifiers: %v and %v", derived, other)
	}
	if want := uuid.MustParse("c58823d8-e044-556b-a61f-d654d52d27b6"); !bytes.Equal(derived[1].ID, want[:]) {
		t.Errorf("the derived UUID has changed to %v: hosts would see another disk", uuid.UUID(derived[1].ID))
	}
	indep, err := nvme.ParseIdentifyNamespaceIndependent(get(nvme.CNSIndependentNamespace, 5))
	if err != nil || indep.NSTAT != nvme.NSTATReady || indep.NMIC != nvme.NMICShared || indep.NSATTR != nvme.NSATTRWriteProtected {
		t.Errorf("CNS 08h: %v %+v", err, indep)
	}
	zero := make([]byte, 4096)
	for name, b := range map[string][]byte{
		"inactive 00h": get(nvme.CNSNamespace, 4), "inactive 08h": get(nvme.CNSIndependentNamespace, MaxNSID),
		"05h": get(nvme.CNSCommandSetNamespace, 1), "06h": get(nvme.CNSCommandSetController, 0),
	} {
		if !bytes.Equal(b, zero) {
			t.Errorf("%s is not zero", name)
		}
	}
	for _, cns := range []nvme.CNS{nvme.CNSActiveNamespaces, nvme.CNSCommandSetActive} {
		for from, want := range map[uint32]int{0: 3, 1: 2, 4: 1, 5: 0, 0xFFFFFFFD: 0} {
			if l, err := nvme.ParseNamespaceList(get(cns, from)); err != nil || len(l) != want {
				t.Errorf("CNS %02Xh from %d: %v", cns, from, l)
			}
		}
	}

	csi := func(cns nvme.CNS) *loop.Command {
		c := identifyCommand(cns, 1)
		c.SQE.Identify().Set(cns, 0, 2)
		return c
	}
	short, capsule, none := identifyCommand(nvme.CNSController, 0), identifyCommand(nvme.CNSController, 0), identifyCommand(nvme.CNSController, 0)
	short.Data = short.Data[:4092]
	capsule.InCapsule = true
	none.Data = nil
	for _, tc := range []struct {
		name string
		c    *loop.Command
		want nvme.Status
	}{
		{"unknown CNS", identifyCommand(0x77, 1), invalidField},
		{"CNS 1Ch", identifyCommand(nvme.CNSCommandSets, 1), invalidField},
		{"CSI 2", csi(nvme.CNSCommandSetNamespace), invalidField},
		{"NSID 0", identifyCommand(nvme.CNSNamespace, 0), invalidNamespace},
		{"NSID all", identifyCommand(nvme.CNSNamespace, nvme.NSIDAll), invalidNamespace},
		{"NSID beyond NN", identifyCommand(nvme.CNSNamespace, MaxNSID+1), invalidNamespace},
		{"descriptors of an inactive namespace", identifyCommand(nvme.CNSDescriptors, 2), invalidNamespace},
		{"list from FFFFFFFEh", identifyCommand(nvme.CNSActiveNamespaces, 0xFFFFFFFE), invalidNamespace},
		{"list from FFFFFFFFh", identifyCommand(nvme.CNSActiveNamespaces, 0xFFFFFFFF), invalidNamespace},
		{"short buffer", short, invalidLength},
		{"no buffer", none, invalidLength},
		{"in-capsule", capsule, invalidField},
	} {
		t.Run(tc.name, func(t *testing.T) { r.status(h.admin, tc.c, tc.want) })
	}
	d := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	r.status(d.admin, identifyCommand(nvme.CNSNamespace, 1), invalidField)
}

// TestAdminRefusals has the rows M01, M15, M16, S01 and S02.
func TestAdminRefusals(t *testing.T) {
	r := newRig(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	for op := range 256 {
		if adminOps[op].execute == nil && nvme.Opcode(op) != nvme.FabricsOpcode {
			r.status(h.admin, command(nvme.Opcode(op), 1, nil), invalidOpcode)
		}
	}
	for _, flags := range []byte{0, 2 << 6, 3 << 6, 1<<6 | 1, 1<<6 | 2, 1<<6 | 3} {
		c := identifyCommand(nvme.CNSController, 0)
		c.SQE.SetFlags(flags)
		r.status(h.admin, c, invalidField)
	}
}

// TestEffectsLogAgrees: log 05h says of every opcode what the dispatch does (I06).
func TestEffectsLogAgrees(t *testing.T) {
	r := newRig(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1)
	l, err := nvme.ParseEffectsLog(r.ok(h.admin, logCommand(nvme.LogEffects, 4096, 0)).Data)
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

// TestLogs has the rows M06 to M08 and the contents of the small pages.
func TestLogs(t *testing.T) {
	r := newRig(t, 1, ramSubsystem(t, 2))
	h := r.connectHost(1)
	pages, err := nvme.ParseSupportedPages(r.ok(h.admin, logCommand(nvme.LogSupportedPages, nvme.SupportedPagesSize, 0)).Data)
	if err != nil {
		t.Fatal(err)
	}
	for lid := range 256 {
		c := r.do(h.admin, logCommand(nvme.LID(lid), 512, 0))
		if ok := c.CQE.Status().OK(); ok != pages.Has(nvme.LID(lid)) {
			t.Errorf("log %02Xh: %v, listed %v", lid, c.CQE.Status(), !ok)
		} else if !ok && c.CQE.Status()&^statusMore != nvme.InvalidLogPage|nvme.DNR {
			t.Errorf("log %02Xh: %v", lid, c.CQE.Status())
		}
	}
	fw, err := nvme.ParseFirmwareLog(r.ok(h.admin, logCommand(nvme.LogFirmwareSlot, nvme.FirmwareLogSize, 0)).Data)
	if err != nil || fw.AFI != 1 || nvme.Text(fw.FRS[0][:]) != testFW {
		t.Errorf("firmware log: %v %+v", err, fw)
	}
	fids, err := nvme.ParseFeatureEffectsLog(r.ok(h.admin, logCommand(nvme.LogFeatureEffects, nvme.FeatureEffectsSize, 0)).Data)
	if err != nil {
		t.Fatal(err)
	}
	for fid := range 256 {
		listed := fids[fid]&nvme.FeatureSupported != 0
		c := getFeature(nvme.FID(fid), nvme.FeatureCapabilities, 0)
		if known := r.do(h.admin, c).CQE.Status().OK(); known != listed {
			t.Errorf("feature %02Xh: listed %v, known %v", fid, listed, known)
		}
	}

	nsid := func(c *loop.Command, id uint32) *loop.Command {
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
		c    *loop.Command
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
		t.Run(tc.name, func(t *testing.T) { r.status(h.admin, tc.c, tc.want) })
	}
	short := logCommand(nvme.LogSMART, 512, 0)
	short.Data = short.Data[:508]
	r.status(h.admin, short, invalidLength)

	// More than the page, and from the middle: what is behind it is zero.
	long := r.ok(h.admin, logCommand(nvme.LogFirmwareSlot, 4096, 8))
	if !bytes.HasPrefix(long.Data, []byte(testFW)) || !bytes.Equal(long.Data[504:], make([]byte, 4096-504)) {
		t.Error("a long read of a log is wrong")
	}
}

// TestSMART: totals are right while queues live, after they went, and after their namespace went.
func TestSMART(t *testing.T) {
	r := newRig(t, 2, ramSubsystem(t, 2))
	h := r.connectHost(2)
	buf := make([]byte, 64<<10)
	for range 40 {
		r.ok(h.io[0], rw(nvme.NVMWrite, 1, 0, 128, buf))
		r.ok(h.io[1], rw(nvme.NVMRead, 1, 0, 64, buf[:32<<10]))
	}
	r.ok(h.io[0], rw(nvme.NVMRead, 2, 0, 1, buf[:512]))
	r.status(h.io[0], rw(nvme.NVMRead, 3, 0, 1, buf[:512]), invalidNamespace)
	expect := func(nsid uint32, unitsRead, unitsWritten, reads, writes uint64) {
		t.Helper()
		c := logCommand(nvme.LogSMART, 512, 0)
		c.SQE.SetNSID(nsid)
		l, err := nvme.ParseSMARTLog(r.ok(h.admin, c).Data)
		want := [...]nvme.Uint128{
			nvme.MakeUint128(unitsRead), nvme.MakeUint128(unitsWritten), nvme.MakeUint128(reads), nvme.MakeUint128(writes),
		}
		if got := [...]nvme.Uint128{l.DataUnitsRead, l.DataUnitsWritten, l.HostReads, l.HostWrites}; err != nil || got != want {
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
	r.during(func() error { return r.target.RemoveNamespace(testSub, 1) })
	expect(0, 3, 6, 41, 40)
}

// TestErrorLog: entries carry the context of the command, newest first, in a ring of 64.
func TestErrorLog(t *testing.T) {
	r := newRig(t, 2, ramSubsystem(t, 1))
	h := r.connectHost(1)
	bad := r.do(h.io[0], rw(nvme.NVMRead, 1, 0x123456789, 1, make([]byte, 512)))
	if bad.CQE.Status()&statusMore == 0 {
		t.Error("More is not set")
	}
	r.do(h.admin, identifyCommand(0x99, 7))
	b := r.ok(h.admin, logCommand(nvme.LogError, 64*64, 0)).Data
	first, _ := nvme.ParseErrorLogEntry(b)
	second, err := nvme.ParseErrorLogEntry(b[64:])
	third, _ := nvme.ParseErrorLogEntry(b[128:])
	if err != nil || first.Count != 2 || first.SQID != 0 || first.Opcode != nvme.AdminIdentify || first.NSID != 7 {
		t.Errorf("newest: %v %+v", err, first)
	}
	if second.Count != 1 || second.SQID != 1 || second.CID != bad.SQE.CID() || second.LBA != 0x123456789 || second.NSID != 1 ||
		nvme.Status(second.Status>>1).Code() != nvme.LBAOutOfRange || second.TRTYPE != nvme.TransportTCP {
		t.Errorf("oldest: %+v", second)
	}
	if second.Location != 40 || second.Status != uint16(bad.CQE.Status())<<1 || second.Version != 1 {
		t.Errorf("oldest: %+v", second)
	}
	if third.Count != 0 {
		t.Errorf("unused: %+v", third)
	}
	for range 100 {
		r.do(h.io[0], rw(nvme.NVMRead, 1, 1<<40, 1, make([]byte, 512)))
	}
	b = r.ok(h.admin, logCommand(nvme.LogError, 64*64, 0)).Data
	first, _ = nvme.ParseErrorLogEntry(b)
	last, _ := nvme.ParseErrorLogEntry(b[63*64:])
	if first.Count != 102 || last.Count != 39 {
		t.Errorf("ring from %d to %d, want 102 to 39", first.Count, last.Count)
	}
}

// TestFeatures has the rows M09 to M11 and SEL.
func TestFeatures(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.MaxIOQueues = 8
	r := newRig(t, 1, sub)
	h := r.connectHost(0)
	for _, tc := range []struct {
		name   string
		c      *loop.Command
		want   nvme.Status
		result uint32
	}{
		{"queues FFFFh", setFeature(nvme.FeatureNumberOfQueues, 0xFFFF0001), invalidField, 0},
		{"queues FFFFh too", setFeature(nvme.FeatureNumberOfQueues, 0x0001FFFF), invalidField, 0},
		{"many queues", setFeature(nvme.FeatureNumberOfQueues, 0xFFFEFFFE), nvme.Success, 0x00070007},
		{"two queues", setFeature(nvme.FeatureNumberOfQueues, 0x00010001), nvme.Success, 0x00010001},
		{"queues now", getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureCurrent, 0), nvme.Success, 0x00010001},
		{"queues by default", getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureDefault, 0), nvme.Success, 0x00070007},
		{"queues saved", getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureSaved, 0), nvme.Success, 0x00070007},
		{"queues capabilities", getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureCapabilities, 0), nvme.Success, 4},
		{"SEL reserved", getFeature(nvme.FeatureNumberOfQueues, 4, 0), invalidField, 0},
		{"unknown", getFeature(0x77, 0, 0), invalidField, 0},
		{"set unknown", setFeature(0x77, 0), invalidField, 0},
		{"events", setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)), nvme.Success, 0},
		{"events now", getFeature(nvme.FeatureAsyncEventConfig, 0, 0), nvme.Success, 0x100},
		{"events not offered", setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventANAChanged)), invalidField, 0},
		{"write cache", setFeature(nvme.FeatureVolatileWriteCache, 1), invalidField, 0}, // RAM has none
		{"power state 0", setFeature(nvme.FeaturePowerManagement, 0), nvme.Success, 0},
		{"power state 1", setFeature(nvme.FeaturePowerManagement, 1), invalidField, 0},
		{"error recovery", setFeature(nvme.FeatureErrorRecovery, 1), nvme.FeatureNotChangeable | nvme.DNR, 0},
		{"set host ID", setFeature(nvme.FeatureHostIdentifier, 1), sequenceError, 0},
		{"host ID of 64 bits", getFeature(nvme.FeatureHostIdentifier, 0, 0), invalidField, 0},
		{"host ID without buffer", getFeature(nvme.FeatureHostIdentifier, 0, 1), invalidLength, 0},
		{"temperature", getFeature(nvme.FeatureTemperatureThreshold, 0, 0), nvme.Success, 0xFFFF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.status(h.admin, tc.c, tc.want)
			if got := tc.c.CQE.DW0(); got != tc.result {
				t.Errorf("result %#x, want %#x", got, tc.result)
			}
		})
	}
	save := setFeature(nvme.FeaturePowerManagement, 0)
	save.SQE[43] |= 0x80
	r.status(h.admin, save, nvme.FeatureNotSaveable|nvme.DNR)
	id := getFeature(nvme.FeatureHostIdentifier, 0, 1)
	id.Data = bytes.Repeat([]byte{0xAA}, 4096)
	r.ok(h.admin, id)
	if !bytes.Equal(id.Data[:16], testHostID[:]) || !bytes.Equal(id.Data[16:], make([]byte, 4080)) {
		t.Errorf("host identifier % x", id.Data[:32])
	}
	h.connectIO(0)
	h.connectIO(0)
	r.status(h.admin, setFeature(nvme.FeatureNumberOfQueues, 0), sequenceError)
	r.status(r.dial(0), h.ioArgs(3).command(), nvme.ConnectInvalidParameters) // two were granted
}

// TestAbort has the row M14.
func TestAbort(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newRig(t, 2, sub)
	h := r.connectHost(1)
	abortCommand := func(sqid, cid uint16) *loop.Command {
		c := command(nvme.AdminAbort, 0, nil)
		c.SQE.Abort().Set(sqid, cid)
		return c
	}
	result := func(c *loop.Command, want uint32) {
		t.Helper()
		if r.ok(h.admin, c).CQE.DW0() != want {
			t.Errorf("result %d, want %d", c.CQE.DW0(), want)
		}
	}
	result(abortCommand(0, 12345), 1)
	result(abortCommand(1, 12345), 1)
	result(abortCommand(9, 1), 1)
	aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	result(abortCommand(0, aer.SQE.CID()), 0)
	if aer.CQE.Status() != nvme.AbortRequested {
		t.Errorf("AER: %v", aer.CQE.Status())
	}

	dev.Hold(nil)
	held := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	result(abortCommand(1, held.SQE.CID()), 1) // the device works on it
	dev.Full(true)
	waiting := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	result(abortCommand(1, waiting.SQE.CID()), 0)
	if !waiting.Done || waiting.CQE.Status() != nvme.AbortRequested {
		t.Errorf("waiting command: %v %v", waiting.Done, waiting.CQE.Status())
	}
	var many []*loop.Command
	for range abortLimit + 1 {
		many = append(many, r.send(h.admin, abortCommand(1, 1)))
	}
	r.w.Settle()
	for i, c := range many {
		want := nvme.Success
		if i == abortLimit {
			want = nvme.AbortLimitExceeded
		}
		if !c.Done || c.CQE.Status().Code() != want {
			t.Errorf("abort %d: %v %v", i, c.Done, c.CQE.Status())
		}
	}
	dev.Full(false)
	dev.Release()
	r.until("the read completes", func() bool { return held.Done })
	if !held.CQE.Status().OK() {
		t.Errorf("read: %v", held.CQE.Status())
	}
}
