package controllers

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// pageFunc makes the data that a command asks for.
type pageFunc func(c *Controller, sqe *nvme.SQE) admin.Reply

// AbortLimit is ACL+1: how many Abort commands may be in progress. AsyncLimit is AERL+1: how many
// Asynchronous Event Requests a host may have outstanding.
const (
	AbortLimit = 4
	AsyncLimit = 4
)

// IdentifyPage is an Identify data structure.
type IdentifyPage struct {
	scope Scope
	// CSI: the command set identifier matters (Base section 5.1.13.1).
	CSI  bool
	make pageFunc
}

// identifyPages is the table of Identify data structures, by CNS.
var identifyPages = [256]IdentifyPage{
	nvme.CNSNamespace:            {scope: OnIO, make: identifyNamespace},
	nvme.CNSController:           {make: identifyController},
	nvme.CNSActiveNamespaces:     {scope: OnIO, make: identifyActive},
	nvme.CNSDescriptors:          {scope: OnIO, make: identifyDescriptors},
	nvme.CNSCommandSetNamespace:  {scope: OnIO, CSI: true, make: identifyNamespaceNVM},
	nvme.CNSCommandSetController: {scope: OnIO, CSI: true, make: identifyControllerNVM},
	nvme.CNSCommandSetActive:     {scope: OnIO, CSI: true, make: identifyActive},
	nvme.CNSIndependentNamespace: {scope: OnIO, make: identifyIndependent},
	// Without namespace management a host sees no namespace that is not active for it.
	nvme.CNSAllocatedNamespaces: {scope: OnIO, make: identifyActive},
	nvme.CNSAllocatedNamespace:  {scope: OnIO, make: identifyNamespace},
	nvme.CNSAttachedControllers: {scope: OnIO, make: identifyAttached},
	nvme.CNSControllers:         {scope: OnIO, make: identifyControllers},
	nvme.CNSEnduranceGroups:     {scope: onRotational, make: identifyEnduranceGroups},
	nvme.CNSCommandSets:         {scope: OnIO, make: identifyCommandSets},
}

// IdentifyPage returns the Identify data structure if the controller has it, else nil.
func (c *Controller) IdentifyPage(cns nvme.CNS) *IdentifyPage {
	p := &identifyPages[cns]
	if p.make == nil || !p.scope.Has(c) {
		return nil
	}
	return p
}

// Identify makes the Identify data structure of a command that was checked.
func (c *Controller) Identify(sqe *nvme.SQE) admin.Reply {
	return identifyPages[sqe.Identify().CNS()].make(c, sqe)
}

// checkIdentify checks an Identify command.
func (c *Controller) checkIdentify(sqe *nvme.IdentifySQE) nvme.Status {
	p := c.IdentifyPage(sqe.CNS())
	if p == nil || p.CSI && sqe.CSI() != nvme.CSINVM {
		return invalidField
	}
	return nvme.Success
}

// identifyController makes CNS 01h (Base section 5.1.13.2.1).
func identifyController(c *Controller, _ *nvme.SQE) admin.Reply {
	cfg := c.Settings
	_, oncs := c.Target.Commands(c, false)
	id := &nvme.IdentifyController{
		CMIC: nvme.CMICMultiPort | nvme.CMICMultiController | nvme.CMICANA,
		MDTS: cfg.MDTS(), CNTLID: c.CNTLID, VER: admin.Version,
		OAES:   admin.SupportedEvents(c.Subsystem.Discovery),
		CTRATT: nvme.CTRATTHostID128 | nvme.CTRATTTBKAS, CNTRLTYPE: nvme.ControllerTypeIO,
		ACL: AbortLimit - 1, AERL: AsyncLimit - 1,
		FRMW: 1<<0 | 1<<1, // one slot, read-only
		LPA: nvme.LPASMARTPerNamespace | nvme.LPAEffects | nvme.LPAExtendedData |
			nvme.LPASupportedPages | nvme.LPATelemetry,
		ELPE: admin.ErrorLogSize - 1, KAS: admin.KeepAliveGranularity,
		OACS: nvme.OACSSelfTest,
		SQES: 0x66, CQES: 0x44, MAXCMD: uint16(min(c.Entries(), 0xFFFF)),
		NN: namespaces.MaxNSID, MNAN: namespaces.MaxNSID,
		ONCS:  oncs | nvme.ONCSSaveSelect | nvme.ONCSTimestamp,
		FUSES: nvme.FUSESCompareWrite, CDFS: CopyFormats,
		VWC:  nvme.VWCFlushAll,
		SGLS: nvme.SGLSSupported | nvme.SGLSOffset,

		// Capsules (Base section 5.1.13.2.1, bytes 1792 on): units of 16 bytes.
		IOCCSZ: uint32(nvme.SQESize+c.Info.InCapsuleSize) / 16, IORCSZ: nvme.CQESize / 16,
		MSDBD: uint8(min(c.Info.MSDBD, 255)),
		OFCS:  1, // Disconnect
	}
	nvme.PutText(id.SN[:], cfg.Serial)
	nvme.PutText(id.MN[:], cfg.Model)
	nvme.PutText(id.FR[:], c.Target.Firmware)
	nvme.PutNQN(&id.SUBNQN, c.Subsystem.NQN)
	if c.cached {
		id.VWC |= nvme.VWCPresent
	}
	id.ANATT, id.ANACAP = ana.TransitionTime, nvme.ANACAPAll
	id.CQT = c.Target.QuiesceTime
	id.ANAGRPMAX, id.NANAGRPID = ana.MaxGroups, ana.MaxGroups
	if c.rotational {
		id.CTRATT |= nvme.CTRATTEnduranceGroups
		id.ENDGIDMAX = namespaces.MaxNSID
	}
	if c.Info.InCapsuleSize == 0 {
		id.SGLS &^= nvme.SGLSOffset
	}
	switch c.Info.Transport {
	case nvme.TransportRDMA:
		id.SGLS |= nvme.SGLSKeyed
	case nvme.TransportTCP:
		id.SGLS |= nvme.SGLSTransportDataBlock
	}
	if c.Subsystem.Discovery {
		nvme.PutNQN(&id.SUBNQN, c.Target.Discovery.Load().NQN)
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
		if withProtection(c) {
			id.NWPC = nvme.NWPCWriteProtect | nvme.NWPCUntilPowerCycle
			if slices.ContainsFunc(c.Namespaces(), isShared) {
				id.NWPC = nvme.NWPCWriteProtect
			}
		}
		return nvme.Append(nil, id)
	})
}

// viewOf returns the data of a namespace for Identify.
func (c *Controller) viewOf(ns *namespaces.Namespace) *admin.Namespace {
	g, cfg := ns.Geometry(), ns.Attributes()
	return &admin.Namespace{
		UUID: cfg.UUID, NGUID: cfg.NGUID, EUI64: cfg.EUI64, ANAGroup: cfg.ANAGroup,
		Info: &g.Info, Blocks: g.Blocks, Shift: g.Shift, ReadOnly: g.ReadOnly,
		Ready:          !g.Unready || g.Info.Standby, // else Linux has no path
		EnduranceGroup: c.enduranceGroup(ns),
		Reservations:   reservation.Cap(c.Target.Reservations != nil),
		HidesCapacity:  c.ANAStates().HidesCapacity(cfg.ANAGroup),
		MSSRL:          MSSRL(g), MCL: MCL(g), MSRC: CopyRanges - 1,
	}
}

// identifyNamespace makes CNS 00h. For a thin namespace it asks the device how much space the
// content takes. If the device cannot tell, thin provisioning is not reported.
func identifyNamespace(c *Controller, sqe *nvme.SQE) admin.Reply {
	ns, st := c.identified(sqe.NSID())
	if ns == nil {
		return admin.Reply{Status: st}
	}
	id, q := c.viewOf(ns), ns.Thin()
	if q == nil {
		return admin.Reply{Data: id.Identify(-1)}
	}
	return admin.Reply{Queries: []admin.Asker{q}, Build: func() admin.Reply {
		id.HidesCapacity = c.ANAStates().HidesCapacity(ns.Attributes().ANAGroup)
		if sp, _, err := q.Peek(); sp != nil && err == nil {
			return admin.Reply{Data: id.Identify(sp.Allocated)}
		}
		return admin.Reply{Data: id.Identify(-1)}
	}}
}

// identified looks up the namespace of a data structure that is all zeroes if the namespace is
// inactive. It returns nil and Success for an inactive namespace.
func (c *Controller) identified(nsid uint32) (*namespaces.Namespace, nvme.Status) {
	// FFFFFFFFh too: there is no namespace management, so there are no common capabilities
	if nsid == 0 || nsid > namespaces.MaxNSID {
		return nil, invalidNamespace
	}
	return c.Namespace(nsid), nvme.Success
}

// identifyActive makes CNS 02h and 07h: up to 1024 NSIDs above the given one (Base section
// 5.1.13.2.2).
func identifyActive(c *Controller, sqe *nvme.SQE) admin.Reply {
	nsid := sqe.NSID()
	if nsid >= nvme.NSIDAll-1 {
		return admin.Reply{Status: invalidNamespace}
	}
	return admin.Page(func() []byte {
		var ids []uint32
		for _, ns := range c.Namespaces() {
			if ns.ID.NSID > nsid {
				ids = append(ids, ns.ID.NSID)
			}
		}
		return nvme.AppendNamespaceList(nil, ids)
	})
}

// identifyDescriptors makes CNS 03h (Base section 5.1.13.2.3).
func identifyDescriptors(c *Controller, sqe *nvme.SQE) admin.Reply {
	ns := c.Namespace(sqe.NSID())
	if ns == nil {
		return admin.Reply{Status: invalidNamespace} // also of one that is not active
	}
	return admin.Reply{Data: c.viewOf(ns).Descriptors()}
}

// identifyNamespaceNVM makes CNS 05h: no protection information, all zeroes (NVM section 4.1.5.3).
func identifyNamespaceNVM(c *Controller, sqe *nvme.SQE) admin.Reply {
	_, st := c.identified(sqe.NSID())
	return admin.Reply{Status: st}
}

// identifyControllerNVM makes CNS 06h (NVM section 4.1.5.4): there are no limits beyond MDTS but
// that of Write Uncorrectable.
func identifyControllerNVM(c *Controller, _ *nvme.SQE) admin.Reply {
	if !WithUncorrectable(c) {
		return admin.Reply{}
	}
	return admin.Reply{Data: nvme.AppendIdentifyControllerNVM(nil, wusl)}
}

// identifyIndependent makes CNS 08h (Base section 5.1.13.2.8).
func identifyIndependent(c *Controller, sqe *nvme.SQE) admin.Reply {
	ns, st := c.identified(sqe.NSID())
	if ns == nil {
		return admin.Reply{Status: st}
	}
	return admin.Reply{Data: c.viewOf(ns).Independent()}
}

// identifyAttached makes CNS 12h: the controllers that a namespace is attached to (Base section
// 5.1.13.2.11). They are the controllers of the hosts that may use it.
func identifyAttached(c *Controller, sqe *nvme.SQE) admin.Reply {
	nsid := sqe.NSID()
	if nsid == nvme.NSIDAll {
		return admin.Refused
	}
	ns := c.Namespace(nsid)
	if ns == nil {
		return admin.Reply{Status: NoNamespace(nsid)}
	}
	return c.listControllers(sqe, ns.Attributes().Visible)
}

// identifyControllers makes CNS 13h: all controllers but unproven ones (Base section 5.1.13.2.12).
func identifyControllers(c *Controller, sqe *nvme.SQE) admin.Reply {
	return c.listControllers(sqe, func(string) bool { return true })
}

// listControllers lists the identifiers of the controllers of some hosts from the given one on.
func (c *Controller) listControllers(sqe *nvme.SQE, of func(hostNQN string) bool) admin.Reply {
	first := sqe.Identify().CNTID()
	return admin.Page(func() []byte {
		var ids []uint16
		c.Subsystem.Each(func(o *Controller) {
			if o.CNTLID >= first && o.Proof.Proven.Load() && of(o.HostNQN) {
				ids = append(ids, o.CNTLID)
			}
		})
		slices.Sort(ids)
		return nvme.AppendIdentifierList(nil, ids)
	})
}

// identifyEnduranceGroups makes CNS 19h: groups from the given one on (Base section 5.1.13.2.18).
func identifyEnduranceGroups(c *Controller, sqe *nvme.SQE) admin.Reply {
	first := sqe.Identify().CNSSpecific()
	return admin.Page(func() []byte {
		var ids []uint16
		for _, ns := range c.Namespaces() {
			if id := uint16(ns.ID.NSID); ns.Geometry().Info.Rotational && id >= first {
				ids = append(ids, id)
			}
		}
		return nvme.AppendIdentifierList(nil, ids)
	})
}

// I/O controllers have one I/O command set, NVM, and say so in all the ways that hosts ask: another
// one becomes a bit of commandSetCombination, and a CSI of identifyPages, of the table of commands
// and of log 05h.

// commandSetCombination is the only combination of I/O command sets (CNS 1Ch).
const commandSetCombination = 1 << nvme.CSINVM

// identifyCommandSets makes CNS 1Ch, which is the same for all controllers of a subsystem. FFFFh is
// the one that is asked (Base section 5.1.13.2.19).
func identifyCommandSets(c *Controller, sqe *nvme.SQE) admin.Reply {
	id := sqe.Identify().CNTID()
	if id != nvme.CNTLIDDynamic && c.Subsystem.Lookup(id) == nil {
		return admin.Refused
	}
	return admin.Reply{Data: nvme.AppendCommandSets(nil, commandSetCombination)}
}

// setCommandSets selects a combination by its index (Base section 5.1.25.1.17).
func setCommandSets(_ *Controller, v uint32) (uint32, nvme.Status) {
	if v&0x1FF != 0 {
		return 0, nvme.CommandSetsRejected | nvme.DNR
	}
	return 0, nvme.Success
}
