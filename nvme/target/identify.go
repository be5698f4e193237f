package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// identifyRow is an Identify data structure.
type identifyRow struct {
	scope scope
	// csi: the command set identifier matters (Base section 5.1.13.1).
	csi  bool
	page pageFunc
}

// identifyPages is the table of Identify data structures, by CNS.
var identifyPages = [256]identifyRow{
	nvme.CNSNamespace:            {scope: onIO, page: identifyNamespace},
	nvme.CNSController:           {page: identifyController},
	nvme.CNSActiveNamespaces:     {scope: onIO, page: identifyActive},
	nvme.CNSDescriptors:          {scope: onIO, page: identifyDescriptors},
	nvme.CNSCommandSetNamespace:  {scope: onIO, csi: true, page: identifyNamespaceNVM},
	nvme.CNSCommandSetController: {scope: onIO, csi: true, page: identifyControllerNVM},
	nvme.CNSCommandSetActive:     {scope: onIO, csi: true, page: identifyActive},
	nvme.CNSIndependentNamespace: {scope: onIO, page: identifyIndependent},
	// Without namespace management a host sees no namespace that is not active for it.
	nvme.CNSAllocatedNamespaces: {scope: onIO, page: identifyActive},
	nvme.CNSAllocatedNamespace:  {scope: onIO, page: identifyNamespace},
	nvme.CNSAttachedControllers: {scope: onIO, page: identifyAttached},
	nvme.CNSControllers:         {scope: onIO, page: identifyControllers},
	nvme.CNSEnduranceGroups:     {scope: onRotational, page: identifyEnduranceGroups},
	nvme.CNSCommandSets:         {scope: onIO, page: identifyCommandSets},
}

func prepareIdentify(c *cmd) nvme.Status {
	sqe := c.req.SQE.Identify()
	row := &identifyPages[sqe.CNS()]
	switch {
	case row.page == nil || !row.scope.has(c.s.ctrl):
		return invalidField
	case row.csi && sqe.CSI() != nvme.CSINVM:
		return invalidField
	}
	return c.expect(nvme.IdentifyDataSize)
}

func identify(h *Handler, c *cmd) {
	sqe := &c.req.SQE
	h.reply(c, 0, identifyPages[sqe.Identify().CNS()].page(c.s.ctrl, sqe), 0)
}

// identifyController makes CNS 01h (Base section 5.1.13.2.1).
func identifyController(c *controller, _ *nvme.SQE) admin.Reply {
	cfg := c.cfg
	id := &nvme.IdentifyController{
		CMIC: nvme.CMICMultiPort | nvme.CMICMultiController | nvme.CMICANA,
		MDTS: cfg.MDTS(), CNTLID: c.cntlid, VER: admin.Version,
		OAES:   admin.SupportedEvents(c.sub.discovery),
		CTRATT: nvme.CTRATTHostID128 | nvme.CTRATTTBKAS, CNTRLTYPE: nvme.ControllerTypeIO,
		ACL: abortLimit - 1, AERL: asyncLimit - 1,
		FRMW: 1<<0 | 1<<1, // one slot, read-only
		LPA: nvme.LPASMARTPerNamespace | nvme.LPAEffects | nvme.LPAExtendedData |
			nvme.LPASupportedPages | nvme.LPATelemetry,
		ELPE: admin.ErrorLogSize - 1, KAS: admin.KeepAliveGranularity,
		OACS: nvme.OACSSelfTest,
		SQES: 0x66, CQES: 0x44, MAXCMD: uint16(min(c.entries(), 0xFFFF)),
		NN: namespaces.MaxNSID, MNAN: namespaces.MaxNSID,
		ONCS:  oncs(c) | nvme.ONCSSaveSelect | nvme.ONCSTimestamp,
		FUSES: nvme.FUSESCompareWrite, CDFS: copyFormats,
		VWC:  nvme.VWCFlushAll,
		SGLS: nvme.SGLSSupported | nvme.SGLSOffset,

		// Capsules (Base section 5.1.13.2.1, bytes 1792 on): units of 16 bytes.
		IOCCSZ: uint32(nvme.SQESize+c.info.InCapsuleSize) / 16, IORCSZ: nvme.CQESize / 16,
		MSDBD: uint8(min(c.info.MSDBD, 255)),
		OFCS:  1, // Disconnect
	}
	nvme.PutText(id.SN[:], cfg.Serial)
	nvme.PutText(id.MN[:], cfg.Model)
	nvme.PutText(id.FR[:], c.t.options.Firmware)
	nvme.PutNQN(&id.SUBNQN, c.sub.nqn)
	if c.cached {
		id.VWC |= nvme.VWCPresent
	}
	if withProtection(c) {
		id.NWPC = nvme.NWPCWriteProtect | nvme.NWPCUntilPowerCycle
	}
	id.ANATT, id.ANACAP = ana.TransitionTime, nvme.ANACAPAll
	id.CQT = uint16(quiesceTime)
	id.ANAGRPMAX, id.NANAGRPID = ana.MaxGroups, ana.MaxGroups
	if c.rotational {
		id.CTRATT |= nvme.CTRATTEnduranceGroups
		id.ENDGIDMAX = namespaces.MaxNSID
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
		nvme.PutNQN(&id.SUBNQN, c.t.discoveryTable.Load().NQN)
		// DCTYPE is not reported: libnvme registers with every discovery controller that does.
		id.CNTRLTYPE = nvme.ControllerTypeDiscovery
		id.NN, id.MNAN, id.ONCS, id.FUSES, id.CDFS, id.VWC = 0, 0, 0, 0, 0, 0
		id.OACS = 0
		id.LPA &^= nvme.LPASMARTPerNamespace | nvme.LPATelemetry
		id.CMIC &^= nvme.CMICANA // without MNAN Linux would refuse the controller
		id.ANATT, id.ANACAP, id.ANAGRPMAX, id.NANAGRPID = 0, 0, 0, 0
		id.SQES, id.CQES = 0, 0 // no I/O queues
		return admin.Reply{Data: nvme.Append(nil, id)}
	}
	return admin.Page(func() []byte {
		id.EDSTT = c.selfTestMinutes()
		return nvme.Append(nil, id)
	})
}

// viewOf returns the data of a namespace for Identify.
func (c *controller) viewOf(ns *namespaces.Namespace) *admin.Namespace {
	g, cfg := ns.Geometry(), ns.Attributes()
	return &admin.Namespace{
		UUID: cfg.UUID, NGUID: cfg.NGUID, EUI64: cfg.EUI64, ANAGroup: cfg.ANAGroup,
		EnduranceGroup: c.enduranceGroup(ns), Reservations: c.reservationCap(),
		Info: &g.Info, Blocks: g.Blocks, Shift: g.Shift, ReadOnly: g.ReadOnly, Ready: !g.Unready,
		HidesCapacity: c.anaStates().HidesCapacity(cfg.ANAGroup),
		MSSRL:         mssrl(g), MCL: mcl(g), MSRC: copyRanges - 1,
	}
}

// identifyNamespace makes CNS 00h. For a thin namespace it asks the device how much space the
// content takes. If the device cannot tell, thin provisioning is not reported.
func identifyNamespace(c *controller, sqe *nvme.SQE) admin.Reply {
	ns, st := c.identified(sqe.NSID())
	if ns == nil {
		return admin.Reply{Status: st}
	}
	id, q := c.viewOf(ns), ns.Thin()
	if q == nil {
		return admin.Reply{Data: id.Identify(-1)}
	}
	return admin.Reply{Queries: []admin.Asker{q}, Build: func() admin.Reply {
		id.HidesCapacity = c.anaStates().HidesCapacity(ns.Attributes().ANAGroup)
		if sp, _, err := q.Peek(); sp != nil && err == nil {
			return admin.Reply{Data: id.Identify(sp.Allocated)}
		}
		return admin.Reply{Data: id.Identify(-1)}
	}}
}

// identified looks up the namespace of a data structure that is all zeroes if the namespace is
// inactive. It returns nil and Success for an inactive namespace.
func (c *controller) identified(nsid uint32) (*namespaces.Namespace, nvme.Status) {
	// FFFFFFFFh too: there is no namespace management, so there are no common capabilities
	if nsid == 0 || nsid > namespaces.MaxNSID {
		return nil, invalidNamespace
	}
	return c.namespace(nsid), nvme.Success
}

// identifyActive makes CNS 02h and 07h: up to 1024 identifiers above the given one (Base section
// 5.1.13.2.2).
func identifyActive(c *controller, sqe *nvme.SQE) admin.Reply {
	nsid := sqe.NSID()
	if nsid >= nvme.NSIDAll-1 {
		return admin.Reply{Status: invalidNamespace}
	}
	return admin.Page(func() []byte {
		var ids []uint32
		for _, ns := range c.namespaces() {
			if ns.ID.NSID > nsid {
				ids = append(ids, ns.ID.NSID)
			}
		}
		return nvme.AppendNamespaceList(nil, ids)
	})
}

// identifyDescriptors makes CNS 03h (Base section 5.1.13.2.3).
func identifyDescriptors(c *controller, sqe *nvme.SQE) admin.Reply {
	ns := c.namespace(sqe.NSID())
	if ns == nil {
		return admin.Reply{Status: invalidNamespace} // also of one that is not active
	}
	return admin.Reply{Data: c.viewOf(ns).Descriptors()}
}

// identifyNamespaceNVM makes CNS 05h: there is no protection information, so it is all zeroes (NVM
// section 4.1.5.3).
func identifyNamespaceNVM(c *controller, sqe *nvme.SQE) admin.Reply {
	_, st := c.identified(sqe.NSID())
	return admin.Reply{Status: st}
}

// identifyControllerNVM makes CNS 06h (NVM section 4.1.5.4): there are no limits beyond MDTS but
// that of Write Uncorrectable.
func identifyControllerNVM(c *controller, _ *nvme.SQE) admin.Reply {
	if !withUncorrectable(c) {
		return admin.Reply{}
	}
	return admin.Reply{Data: nvme.AppendIdentifyControllerNVM(nil, wusl)}
}

// identifyIndependent makes CNS 08h (Base section 5.1.13.2.8).
func identifyIndependent(c *controller, sqe *nvme.SQE) admin.Reply {
	ns, st := c.identified(sqe.NSID())
	if ns == nil {
		return admin.Reply{Status: st}
	}
	return admin.Reply{Data: c.viewOf(ns).Independent()}
}

// identifyAttached makes CNS 12h: the controllers that a namespace is attached to (Base section
// 5.1.13.2.11). They are the controllers of the hosts that may use it.
func identifyAttached(c *controller, sqe *nvme.SQE) admin.Reply {
	nsid := sqe.NSID()
	if nsid == nvme.NSIDAll {
		return admin.Refused
	}
	ns := c.namespace(nsid)
	if ns == nil {
		return admin.Reply{Status: noNamespace(nsid)}
	}
	return c.listControllers(sqe, ns.Attributes().Visible)
}

// identifyControllers makes CNS 13h: all controllers but the unproven ones (Base section
// 5.1.13.2.12).
func identifyControllers(c *controller, sqe *nvme.SQE) admin.Reply {
	return c.listControllers(sqe, func(string) bool { return true })
}

// listControllers lists the identifiers of the controllers of some hosts from the given one on.
func (c *controller) listControllers(sqe *nvme.SQE, of func(hostNQN string) bool) admin.Reply {
	first := sqe.Identify().CNTID()
	return admin.Page(func() []byte {
		var ids []uint16
		c.sub.each(func(o *controller) {
			if o.cntlid >= first && o.proof.Proven.Load() && of(o.hostNQN) {
				ids = append(ids, o.cntlid)
			}
		})
		slices.Sort(ids)
		return nvme.AppendIdentifierList(nil, ids)
	})
}

// identifyEnduranceGroups makes CNS 19h: the identifiers from the given one on (Base section
// 5.1.13.2.18).
func identifyEnduranceGroups(c *controller, sqe *nvme.SQE) admin.Reply {
	first := sqe.Identify().CNSSpecific()
	return admin.Page(func() []byte {
		var ids []uint16
		for _, ns := range c.namespaces() {
			if id := uint16(ns.ID.NSID); ns.Geometry().Info.Rotational && id >= first {
				ids = append(ids, id)
			}
		}
		return nvme.AppendIdentifierList(nil, ids)
	})
}
