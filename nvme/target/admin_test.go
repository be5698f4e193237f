package target

import (
	"bytes"
	"testing"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestIdentifyController checks what a Linux host needs to connect and to use its features.
func TestIdentifyController(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.Serial, sub.Model = "SN-1", "model"
	r := newHarness(t, 1, sub)
	for _, tr := range []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA} {
		for nqn, checkKind := range map[string]func(check,
			*nvme.IdentifyController){testSub: checkIO, nvme.DiscoveryNQN: checkDiscovery} {
			qi := info(tr)
			qi.MSDBD, qi.InCapsuleSize = 16, 8192
			h := r.connectHostInfo(0, qi, func(a *connectArgs) { a.sub = nqn })
			c := r.ok(h.admin, identifyCommand(nvme.CNSController, 0))
			id, err := nvme.Parse[nvme.IdentifyController](c.Data)
			if err != nil {
				t.Fatal(err)
			}
			check := func(name string, got, want any) {
				t.Helper()
				if got != want {
					t.Errorf("%v %s: %s is %v, want %v", tr, nqn, name, got, want)
				}
			}
			check("CNTLID", id.CNTLID, h.cntlid)
			check("VER", uint64(id.VER), h.property(nvme.PropertyVS))
			check("keyed SGL", id.SGLS&nvme.SGLSKeyed != 0, tr == nvme.TransportRDMA)
			subnqn, _ := nvme.ParseNQN(&id.SUBNQN)
			check("SUBNQN", subnqn, nqn)
			checkAny(check, id)
			checkKind(check, id)
		}
	}
}

// check compares a field of Identify Controller.
type check func(name string, got, want any)

// checkAny checks what all controllers have in common.
func checkAny(check check, id *nvme.IdentifyController) {
	check("KAS", id.KAS, uint16(keepAliveGranularity))
	check("IOCCSZ", id.IOCCSZ, uint32((64+8192)/16))
	check("IORCSZ", id.IORCSZ, uint32(1))
	check("ICDOFF", id.ICDOFF, uint16(0))
	check("MSDBD", id.MSDBD, uint8(16))
	check("MAXCMD", id.MAXCMD, uint16(128))
	check("TBKAS", id.CTRATT&nvme.CTRATTTBKAS != 0, true)
	check("SGL", id.SGLS&3, nvme.SGLSSupported)
	check("SAOS", id.SGLS&nvme.SGLSOffset != 0, true)
	check("OFCS", id.OFCS&1, uint16(1))
	check("FR", nvme.Text(id.FR[:]), testFW)
	check("AERL", id.AERL, uint8(3))
	check("CMIC", id.CMIC&nvme.CMICMultiController != 0, true)
	check("effects log", id.LPA&nvme.LPAEffects != 0, true)
}

func checkDiscovery(check check, id *nvme.IdentifyController) {
	check("CNTRLTYPE", id.CNTRLTYPE, nvme.ControllerTypeDiscovery)
	check("OAES", id.OAES, nvme.EventDiscoveryChanged)
	check("CMIC", id.CMIC&nvme.CMICANA, nvme.CMIC(0))
	check("ANAGRPMAX", id.ANAGRPMAX, uint32(0))
	check("DCTYPE", id.DCTYPE, uint8(0))
	check("MDTS", 4096<<id.MDTS, discoveryTransfer)
}

func checkIO(check check, id *nvme.IdentifyController) {
	check("CNTRLTYPE", id.CNTRLTYPE, nvme.ControllerTypeIO)
	check("MDTS", 4096<<id.MDTS, defaultTransfer)
	check("SN", nvme.Text(id.SN[:]), "SN-1")
	check("MN", nvme.Text(id.MN[:]), "model")
	check("OAES", id.OAES, nvme.EventNamespaceChanged|nvme.EventANAChanged)
	check("CMIC", id.CMIC&nvme.CMICANA, nvme.CMICANA)
	check("ANACAP", id.ANACAP, nvme.ANACAPAll)
	check("ANATT", id.ANATT, uint8(ANATransitionTime))
	check("ANAGRPMAX", id.ANAGRPMAX, uint32(MaxANAGroups))
	check("NANAGRPID", id.NANAGRPID, uint32(MaxANAGroups))
	check("CQT", id.CQT, uint16(6000))
	check("NN", id.NN, uint32(MaxNSID))
	check("MNAN", id.MNAN, uint32(MaxNSID))
	check("SQES", id.SQES, uint8(0x66))
	check("CQES", id.CQES, uint8(0x44))
	check("ONCS", id.ONCS, nvme.ONCSCompare|nvme.ONCSVerify|nvme.ONCSCopy|
		nvme.ONCSDatasetManagement|nvme.ONCSWriteZeroes|nvme.ONCSSaveSelect|nvme.ONCSTimestamp|
		nvme.ONCSReservations)
	check("FUSES", id.FUSES, nvme.FUSESCompareWrite)
	check("ACWU", id.ACWU, uint16(0))      // one block
	check("VWC", id.VWC, nvme.VWCFlushAll) // RAM has no volatile cache
}

// TestIdentifyNamespaces checks the namespace structures (M02 to M05).
func TestIdentifyNamespaces(t *testing.T) {
	sub := ramSubsystem(t, 3)
	sub.Namespaces[1] = NamespaceConfig{
		NSID: 5, Device: ramDevice(t, 8<<20, 4096), UUID: uuid.UUID{1}, NGUID: [16]byte{2},
		EUI64: [8]byte{3}, ReadOnly: true,
	}
	r := newHarness(t, 1, sub,
		SubsystemConfig{
			NQN:        testSub + "2",
			Namespaces: []NamespaceConfig{{NSID: 1, Device: ramDevice(t, 1<<20, 512)}},
		})
	h := r.connectHost(0)
	get := func(cns nvme.CNS,
		nsid uint32,
	) []byte {
		return r.ok(h.admin, identifyCommand(cns, nsid)).Data
	}

	id, err := nvme.Parse[nvme.IdentifyNamespace](get(nvme.CNSNamespace, 5))
	if err != nil || id.NSZE != 2048 || id.NCAP != 2048 || id.NUSE != 2048 ||
		id.Format().LBADS != 12 || id.NMIC != nvme.NMICShared ||
		id.NSATTR != nvme.NSATTRWriteProtected || id.NGUID != [16]byte{2} ||
		id.EUI64 != [8]byte{3} ||
		id.DLFEAT != nvme.DLFEATReadsZeroes|nvme.DLFEATWriteZeroes {
		t.Errorf("namespace 5: %v %+v", err, id)
	}
	ids, err := nvme.ParseNamespaceIDs(get(nvme.CNSDescriptors, 5))
	if err != nil || len(ids) != 4 || ids[0].ID[0] != 3 || ids[1].ID[0] != 2 || ids[2].ID[0] != 1 ||
		ids[3].Type != nvme.IDTypeCSI {
		t.Errorf("descriptors of namespace 5: %v %v", err, ids)
	}
	derived, _ := nvme.ParseNamespaceIDs(get(nvme.CNSDescriptors, 1))
	other, _ := nvme.ParseNamespaceIDs(get(nvme.CNSDescriptors, 3))
	plain, _ := nvme.Parse[nvme.IdentifyNamespace](get(nvme.CNSNamespace, 1))
	if len(derived) != 3 || !bytes.Equal(derived[0].ID, plain.NGUID[:]) ||
		bytes.Equal(derived[0].ID, other[0].ID) {
		t.Errorf("derived identifiers: %v and %v", derived, other)
	}
	if want := uuid.MustParse("c58823d8-e044-556b-a61f-d654d52d27b6"); !bytes.Equal(derived[1].ID,
		want[:]) {
		t.Errorf("the derived UUID has changed to %v: hosts would see another disk",
			uuid.UUID(derived[1].ID))
	}
	indep, err := nvme.Parse[nvme.IdentifyNamespaceIndependent](get(nvme.CNSIndependentNamespace,
		5))
	if err != nil || indep.NSTAT != nvme.NSTATReady || indep.NMIC != nvme.NMICShared ||
		indep.NSATTR != nvme.NSATTRWriteProtected {
		t.Errorf("CNS 08h: %v %+v", err, indep)
	}
	zero := make([]byte, 4096)
	for name, b := range map[string][]byte{
		"inactive 00h": get(nvme.CNSNamespace, 4),
		"inactive 08h": get(nvme.CNSIndependentNamespace, MaxNSID),
		"05h":          get(nvme.CNSCommandSetNamespace, 1),
		"06h":          get(nvme.CNSCommandSetController, 0),
	} {
		if !bytes.Equal(b, zero) {
			t.Errorf("%s is not zero", name)
		}
	}
	if !bytes.Equal(get(nvme.CNSAllocatedNamespace, 5), get(nvme.CNSNamespace, 5)) {
		t.Error("CNS 11h differs from CNS 00h")
	}
	for _, cns := range []nvme.CNS{
		nvme.CNSActiveNamespaces, nvme.CNSCommandSetActive, nvme.CNSAllocatedNamespaces,
	} {
		for from, want := range map[uint32]int{0: 3, 1: 2, 4: 1, 5: 0, 0xFFFFFFFD: 0} {
			if l, err := nvme.ParseNamespaceList(get(cns, from)); err != nil || len(l) != want {
				t.Errorf("CNS %02Xh from %d: %v", cns, from, l)
			}
		}
	}
}

// TestIdentifyRefused: structures that do not exist, and malformed requests.
func TestIdentifyRefused(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	csi := func(cns nvme.CNS) *fabrictest.Command {
		c := identifyCommand(cns, 1)
		c.SQE.Identify().Set(cns, 0, 2)
		return c
	}
	short, capsule, none := identifyCommand(nvme.CNSController, 0),
		identifyCommand(nvme.CNSController, 0), identifyCommand(nvme.CNSController, 0)
	short.Data = short.Data[:4092]
	capsule.InCapsule = true
	none.Data = nil
	for _, tc := range []struct {
		name string
		c    *fabrictest.Command
		want nvme.Status
	}{
		{"unknown CNS", identifyCommand(0x77, 1), invalidField},
		{"CNS 1Ch of no controller", commandSetsOf(0xFFEF), invalidField},
		{"CSI 2", csi(nvme.CNSCommandSetNamespace), invalidField},
		{"NSID 0", identifyCommand(nvme.CNSNamespace, 0), invalidNamespace},
		{"NSID all", identifyCommand(nvme.CNSNamespace, nvme.NSIDAll), invalidNamespace},
		{"NSID beyond NN", identifyCommand(nvme.CNSNamespace, MaxNSID+1), invalidNamespace},
		{
			"descriptors of an inactive namespace", identifyCommand(nvme.CNSDescriptors, 2),
			inactiveNamespace,
		},
		{
			"list from FFFFFFFEh", identifyCommand(nvme.CNSActiveNamespaces, 0xFFFFFFFE),
			invalidNamespace,
		},
		{
			"list from FFFFFFFFh", identifyCommand(nvme.CNSActiveNamespaces, 0xFFFFFFFF),
			invalidNamespace,
		},
		{"short buffer", short, invalidLength},
		{"no buffer", none, invalidLength},
		{"in-capsule", capsule, invalidField},
	} {
		r.run(tc.name, func(t *testing.T) { r.status(h.admin, tc.c, tc.want) })
	}
	d := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	r.status(d.admin, identifyCommand(nvme.CNSNamespace, 1), invalidField)
}

// TestControllerLists: every controller of the subsystem, from the given one on, is in the list of
// controllers and in that of a namespace.
func TestControllerLists(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.CNTLIDMin = 0x100
	r := newHarness(t, 1, sub, SubsystemConfig{NQN: testSub + "2", AllowAnyHost: true})
	h := r.connectHost(0)
	r.connectHost(0)
	r.connectHost(0, on(testSub+"2"))
	r.connectHost(0, on(nvme.DiscoveryNQN))
	for _, cns := range []nvme.CNS{nvme.CNSAttachedControllers, nvme.CNSControllers} {
		for from, want := range map[uint16]string{
			0: "\x02\x00\x00\x01\x01\x01\x00", 0x101: "\x01\x00\x01\x01\x00\x00\x00",
			0x102: "\x00\x00\x00\x00\x00\x00\x00",
		} {
			c := identifyCommand(cns, 1)
			c.SQE.Identify().Set(cns, from, 0)
			if got := r.ok(h.admin, c).Data[:7]; string(got) != want {
				t.Errorf("CNS %02Xh from %#x: % x, want % x", cns, from, got, want)
			}
		}
	}
}
