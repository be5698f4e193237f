package target

import (
	"slices"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// version is what controllers comply with (VS and VER). 2.0 asks for CNS 07h and 08h, logs 00h, 05h
// and 12h, and CRTO.
const version = nvme.Version20

// identifyFunc makes an Identify data structure.
type identifyFunc func(c *controller, sqe *nvme.IdentifySQE, nsid uint32) ([]byte, nvme.Status)

// identifies is the table of CNS values; discovery controllers know only the controller structure.
var identifies = [256]identifyFunc{
	nvme.CNSNamespace:            identifyNamespace,
	nvme.CNSController:           identifyController,
	nvme.CNSActiveNamespaces:     identifyActive,
	nvme.CNSDescriptors:          identifyDescriptors,
	nvme.CNSCommandSetNamespace:  identifyNamespaceNVM,
	nvme.CNSCommandSetController: identifyControllerNVM,
	nvme.CNSCommandSetActive:     identifyActive,
	nvme.CNSIndependentNamespace: identifyIndependent,
}

// usesCSI tells which CNS values look at the command set identifier (Base section 5.1.13.1).
func usesCSI(cns nvme.CNS) bool {
	return cns >= nvme.CNSCommandSetNamespace && cns <= nvme.CNSCommandSetActive
}

func prepareIdentify(c *cmd) nvme.Status {
	sqe := c.req.SQE.Identify()
	cns := sqe.CNS()
	if identifies[cns] == nil || c.s.ctrl.sub.discovery && cns != nvme.CNSController {
		return invalidField
	}
	if usesCSI(cns) && sqe.CSI() != nvme.CSINVM {
		return invalidField
	}
	return c.expect(nvme.IdentifyDataSize)
}

func identify(h *Handler, c *cmd) {
	sqe := c.req.SQE.Identify()
	data, st := identifies[sqe.CNS()](c.s.ctrl, sqe, c.req.SQE.NSID())
	switch ns := c.namespace(); {
	case !st.OK():
		h.finish(c, 0, st)
	case sqe.CNS() == nvme.CNSNamespace && ns != nil && ns.geo.Load().info.Thin:
		ns.utilization(c, data)
	default:
		h.reply(c, 0, data)
	}
}

// utilization completes an Identify Namespace, data, with how much space the content takes (NVM
// section 4.1.5.1, NSFEAT bit 0, and NUSE). It asks the device on an ordinary goroutine; with one
// that does not tell, nothing is said of thin provisioning.
func (ns *namespace) utilization(c *cmd, data []byte) {
	dev, ok := ns.dev.(backend.Allocator)
	if !ok {
		c.s.h.reply(c, 0, data)
		return
	}
	go func() {
		n, err := dev.Allocated()
		c.s.h.post(func() {
			id, e := nvme.ParseIdentifyNamespace(data)
			if err == nil && e == nil {
				id.NSFEAT |= nvme.NSFEATThin
				id.NUSE = min(uint64(n)>>id.Format().LBADS, id.NCAP)
				data = id.Append(nil)
			}
			c.s.h.reply(c, 0, data)
		})
	}()
}

// identifyController makes CNS 01h (Base section 5.1.13.2.1).
func identifyController(c *controller, _ *nvme.IdentifySQE, _ uint32) ([]byte, nvme.Status) {
	cfg := &c.sub.cfg
	id := &nvme.IdentifyController{
		CMIC: nvme.CMICMultiPort | nvme.CMICMultiController,
		MDTS: c.sub.cfg.mdts(), CNTLID: c.cntlid, VER: version, RTD3R: 0, RTD3E: 0,
		OAES: c.supportedEvents(), CTRATT: nvme.CTRATTHostID128 | nvme.CTRATTTBKAS,
		CNTRLTYPE: nvme.ControllerTypeIO,
		ACL:       abortLimit - 1, AERL: asyncLimit - 1,
		FRMW: 1<<0 | 1<<1, // one slot, read-only
		LPA:  nvme.LPASMARTPerNamespace | nvme.LPAEffects | nvme.LPAExtendedData | nvme.LPASupportedPages,
		ELPE: errorLogSize - 1, KAS: keepAliveGranularity,
		SQES: 0x66, CQES: 0x44, MAXCMD: uint16(min(c.entries(), 0xFFFF)),
		NN: MaxNSID, MNAN: MaxNSID,
		ONCS: nvme.ONCSDatasetManagement | nvme.ONCSWriteZeroes | nvme.ONCSSaveSelect,
		VWC:  nvme.VWCFlushAll,
		SGLS: nvme.SGLSSupported | nvme.SGLSOffset,

		// Capsules (Base section 5.1.13.2.1, bytes 1792 on): units of 16 bytes.
		IOCCSZ: uint32(nvme.SQESize+c.info.InCapsuleSize) / 16, IORCSZ: nvme.CQESize / 16,
		MSDBD: uint8(min(c.info.MSDBD, 255)),
		OFCS:  1, // Disconnect
	}
	nvme.PutText(id.SN[:], cfg.Serial)
	nvme.PutText(id.MN[:], cfg.Model)
	nvme.PutText(id.FR[:], c.t.firmware)
	nvme.PutNQN(&id.SUBNQN, c.sub.nqn)
	if c.vwc {
		id.VWC |= nvme.VWCPresent
	}
	if c.info.InCapsuleSize == 0 {
		id.SGLS &^= nvme.SGLSOffset
	}
	switch c.info.Transport {
	case nvme.TransportRDMA:
		id.SGLS |= nvme.SGLSKeyed
	case nvme.TransportTCP:
		id.SGLS |= nvme.SGLSTransportDataBlock
	}
	if c.sub.discovery {
		id.CNTRLTYPE, id.DCTYPE = nvme.ControllerTypeDiscovery, 1 // a direct discovery controller
		id.NN, id.MNAN, id.ONCS, id.VWC = 0, 0, 0, 0
		id.LPA &^= nvme.LPASMARTPerNamespace
		id.SQES, id.CQES = 0, 0 // no I/O queues
	}
	return id.Append(nil), nvme.Success
}

// identifyNamespace makes CNS 00h (NVM section 4.1.5.1). A namespace identifier that could exist
// but does not is all zeroes.
func identifyNamespace(c *controller, _ *nvme.IdentifySQE, nsid uint32) ([]byte, nvme.Status) {
	ns, st := c.identified(nsid)
	if ns == nil {
		return nil, st
	}
	g := ns.geo.Load()
	id := &nvme.IdentifyNamespace{
		NSZE: g.blocks, NCAP: g.blocks, NUSE: g.blocks,
		NMIC:  nvme.NMICShared,
		NGUID: ns.nguid, EUI64: ns.eui64,
		NSATTR: nsattr(g),
	}
	id.LBAF[0].LBADS = g.shift
	if g.info.DiscardZeroes {
		id.DLFEAT = nvme.DLFEATReadsZeroes
	}
	id.DLFEAT |= nvme.DLFEATWriteZeroes
	blocks := func(bytes int) uint16 { // 0-based
		return uint16(min(max(bytes>>g.shift, 1)-1, 0xFFFF))
	}
	if g.info.PhysicalBlockSize > g.info.BlockSize || g.info.OptimalIO > 0 {
		id.NSFEAT |= nvme.NSFEATOptimalIO
		id.NPWG = blocks(g.info.PhysicalBlockSize)
		id.NPWA, id.NPDG, id.NPDA = id.NPWG, id.NPWG, id.NPWG
		id.NOWS = blocks(g.info.OptimalIO)
	}
	id.NVMCAP = nvme.MakeUint128(g.blocks << g.shift)
	return id.Append(nil), nvme.Success
}

func nsattr(g *geometry) nvme.NSATTR {
	if g.readOnly {
		return nvme.NSATTRWriteProtected
	}
	return 0
}

// identified looks up a namespace for the structures that show zeroes for an inactive one: nil with
// Success.
func (c *controller) identified(nsid uint32) (*namespace, nvme.Status) {
	// FFFFFFFFh too: no namespace management, so no common capabilities
	if nsid == 0 || nsid > MaxNSID {
		return nil, invalidNamespace
	}
	return c.sub.namespaces.Load().get(nsid), nvme.Success
}

// identifyActive makes CNS 02h and 07h: up to 1024 identifiers above nsid (Base section
// 5.1.13.2.2).
func identifyActive(c *controller, _ *nvme.IdentifySQE, nsid uint32) ([]byte, nvme.Status) {
	if nsid >= nvme.NSIDAll-1 {
		return nil, invalidNamespace
	}
	var ids []uint32
	for _, ns := range c.sub.namespaces.Load().list {
		if ns.nsid > nsid {
			ids = append(ids, ns.nsid)
		}
	}
	return nvme.AppendNamespaceList(nil, ids), nvme.Success
}

// identifyDescriptors makes CNS 03h (Base section 5.1.13.2.3).
func identifyDescriptors(c *controller, _ *nvme.IdentifySQE, nsid uint32) ([]byte, nvme.Status) {
	ns := c.sub.namespaces.Load().get(nsid)
	if ns == nil {
		return nil, invalidNamespace
	}
	var ids []nvme.NamespaceID
	if ns.eui64 != [8]byte{} {
		ids = append(ids, nvme.NamespaceID{Type: nvme.IDTypeEUI64, ID: slices.Clone(ns.eui64[:])})
	}
	if ns.nguid != [16]byte{} {
		ids = append(ids, nvme.NamespaceID{Type: nvme.IDTypeNGUID, ID: slices.Clone(ns.nguid[:])})
	}
	if ns.uuid != uuid.Nil {
		ids = append(ids, nvme.NamespaceID{Type: nvme.IDTypeUUID, ID: slices.Clone(ns.uuid[:])})
	}
	ids = append(ids, nvme.NamespaceID{Type: nvme.IDTypeCSI, ID: []byte{byte(nvme.CSINVM)}})
	return nvme.AppendNamespaceIDs(nil, ids...), nvme.Success
}

// identifyNamespaceNVM makes CNS 05h: no protection information, so all zeroes (NVM section
// 4.1.5.3).
func identifyNamespaceNVM(c *controller, _ *nvme.IdentifySQE, nsid uint32) ([]byte, nvme.Status) {
	_, st := c.identified(nsid)
	return nil, st
}

// identifyControllerNVM makes CNS 06h: no limits beyond MDTS, so all zeroes (NVM section 4.1.5.4).
func identifyControllerNVM(*controller, *nvme.IdentifySQE, uint32) ([]byte, nvme.Status) {
	return new(nvme.IdentifyControllerNVM).Append(nil), nvme.Success
}

// identifyIndependent makes CNS 08h (Base section 5.1.13.2.8).
func identifyIndependent(c *controller, _ *nvme.IdentifySQE, nsid uint32) ([]byte, nvme.Status) {
	ns, st := c.identified(nsid)
	if ns == nil {
		return nil, st
	}
	id := &nvme.IdentifyNamespaceIndependent{
		NMIC: nvme.NMICShared, NSATTR: nsattr(ns.geo.Load()), NSTAT: nvme.NSTATReady,
	}
	if ns.geo.Load().unready {
		id.NSTAT &^= nvme.NSTATReady
	}
	return id.Append(nil), nvme.Success
}
