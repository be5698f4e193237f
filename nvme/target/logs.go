package target

import "github.com/nvmf-target/nvmf-target/nvme"

// logPage is a log page (Base section 5.1.12.1).
type logPage struct {
	// make builds the whole page.
	make func(c *controller, nsid uint32) []byte
	// size is the length of the page if it is known before it is made, otherwise 0.
	size uint64
	// perNamespace: the NSID may name a namespace.
	perNamespace bool
	// io and discovery: which controllers have it.
	io, discovery bool
}

// miEffectsSize is the size of log 13h, which is empty: there is no management interface (Base
// section 5.1.12.1.19).
const miEffectsSize = 4096

// logPages is filled by init because log 00h reads it.
var logPages [256]logPage

func init() {
	logPages = [256]logPage{
		nvme.LogSupportedPages: {
			make: supportedPages, size: nvme.SupportedPagesSize, io: true, discovery: true,
		},
		nvme.LogError: {
			size: errorLogSize * nvme.ErrorLogEntrySize, io: true, discovery: true,
			make: func(c *controller, _ uint32) []byte { return c.errors.page() },
		},
		nvme.LogSMART: {
			make: func(c *controller, nsid uint32) []byte { return c.smart(nsid, nil) },
			size: nvme.SMARTLogSize, io: true, perNamespace: true,
		},
		nvme.LogFirmwareSlot: {
			make: firmwareSlots, size: nvme.FirmwareLogSize, io: true,
		},
		nvme.LogChangedNamespaces: {
			make: changedList, size: 4 * nvme.NamespacesPerList, io: true,
		},
		nvme.LogEffects: {
			make: commandEffects, size: nvme.EffectsLogSize, io: true, discovery: true,
		},
		nvme.LogFeatureEffects: {
			make: featureEffects, size: nvme.FeatureEffectsSize, io: true, discovery: true,
		},
		nvme.LogMIEffects: {
			size: miEffectsSize, io: true, discovery: true,
			make: func(*controller, uint32) []byte { return make([]byte, miEffectsSize) },
		},
		nvme.LogDiscovery: {discovery: true},
	}
}

func (p *logPage) on(c *controller) bool {
	if c.sub.discovery {
		return p.discovery
	}
	return p.io
}

func prepareGetLog(cm *cmd) nvme.Status {
	c, sqe := cm.s.ctrl, cm.req.SQE.GetLog()
	p := &logPages[sqe.LID()]
	switch n := sqe.Bytes(); {
	case !p.on(c):
		return nvme.InvalidLogPage | nvme.DNR
	case sqe.OT() || sqe.LPO()%4 != 0 || p.size > 0 && sqe.LPO() >= p.size:
		// no index offsets; a dword-aligned offset within the page (Base section 5.1.12)
		return invalidField
	case sqe.LID() == nvme.LogEffects && sqe.CSI() != nvme.CSINVM:
		return invalidField
	case n > uint64(c.sub.cfg.MaxTransfer):
		return invalidField
	case !p.takes(c, cm.req.SQE.NSID()):
		return invalidField
	default:
		return cm.expect(uint32(n))
	}
}

// takes says whether a log page can be read with this NSID.
func (p *logPage) takes(c *controller, nsid uint32) bool {
	return nsid == 0 || nsid == nvme.NSIDAll || p.perNamespace &&
		c.sub.namespaces.Load().get(nsid) != nil
}

func getLog(h *Handler, cm *cmd) {
	c, sqe := cm.s.ctrl, cm.req.SQE.GetLog()
	if sqe.LID() == nvme.LogDiscovery {
		c.discoveryLog(cm)
		return
	}
	if sqe.LID() == nvme.LogSMART && c.healthLog(cm) {
		return
	}
	h.logPage(cm, logPages[sqe.LID()].make(c, cm.req.SQE.NSID()))
}

// logPage answers with a log page.
func (h *Handler) logPage(cm *cmd, page []byte) {
	c, sqe := cm.s.ctrl, cm.req.SQE.GetLog()
	if !sqe.RAE() {
		c.logRead(sqe.LID())
		if sqe.LID() == nvme.LogChangedNamespaces {
			c.changed = changedNamespaces{}
		}
	}
	h.reply(cm, 0, page[sqe.LPO():])
}

func supportedPages(c *controller, _ uint32) []byte {
	var p nvme.SupportedPages
	for i := range logPages {
		if logPages[i].on(c) {
			p.Add(nvme.LID(i))
		}
	}
	return p.Append(nil)
}

func firmwareSlots(c *controller, _ uint32) []byte {
	l := &nvme.FirmwareLog{AFI: 1}
	nvme.PutText(l.FRS[0][:], c.t.firmware)
	return l.Append(nil)
}

func changedList(c *controller, _ uint32) []byte {
	if c.changed.overflow {
		return nvme.AppendNamespaceList(nil, []uint32{nvme.ChangedNamespacesOverflow})
	}
	return nvme.AppendNamespaceList(nil, c.changed.nsids)
}

func commandEffects(c *controller, _ uint32) []byte {
	l := &nvme.EffectsLog{Admin: effects(&adminOps, scopeController)}
	if !c.sub.discovery {
		l.IO = effects(&ioOps, scopeNone)
	}
	return l.Append(nil)
}

// featureEffects makes log 12h from the table of features.
func featureEffects(c *controller, _ uint32) []byte {
	l := new(nvme.FeatureEffectsLog)
	for i := range features {
		switch f := c.feature(nvme.FID(i)); {
		case f == nil:
		case f.namespaceScope:
			l[i] = nvme.FeatureSupported | nvme.FeatureScopeNamespace
		default:
			l[i] = nvme.FeatureSupported | nvme.FeatureScopeController
		}
	}
	return l.Append(nil)
}
