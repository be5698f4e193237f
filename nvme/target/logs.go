package target

import (
	"cmp"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// logs are the logs of a controller.
type logs struct {
	errors         admin.ErrorLog
	changed        admin.ChangedNamespaces
	reservationLog reservation.Log
	selfTest       selfTest
	telemetry      admin.Telemetry
	queueAnswers   queueAnswers // to telemetry.Query
	ana            ana.Log
	anaStale       bool // namespaces have changed since the log was made
	discoveryLogs  discovery.Logs
	remaking       *hostWork // see remakeLogs; nil: does not go on
}

// reset is a Controller Reset.
func (l *logs) reset() {
	l.changed, l.reservationLog = admin.ChangedNamespaces{}, reservation.Log{}
	l.ana, l.anaStale = ana.Log{}, false
	l.selfTest.reset()
}

// logPage is a log page (Base section 5.1.12.1).
type logPage struct {
	scope scope
	page  pageFunc
	// size is the length of the page. 0: it varies, and page returns the part from LPO on.
	size uint64
	// unit is the granularity of offsets and lengths, in bytes; 0: dwords.
	unit uint64
	// csi: the command set identifier matters.
	csi bool
	// perNamespace: the NSID may name a namespace.
	perNamespace bool
	// specific is the LID Specific Parameter of log 00h.
	specific uint16
}

// miEffectsSize is the size of log 13h, which is empty: there is no management interface (Base
// section 5.1.12.1.19).
const miEffectsSize = 4096

// logPages is filled by init because log 00h, which is one of them, reads it.
var logPages [256]logPage

func init() {
	logPages = [256]logPage{
		nvme.LogSupportedPages: {page: supportedPages, size: nvme.SupportedPagesSize},
		nvme.LogError: {
			page: errorPage, size: admin.ErrorLogSize * nvme.ErrorLogEntrySize,
		},
		nvme.LogSMART: {
			scope: onIO, page: healthPage, size: nvme.SMARTLogSize, perNamespace: true,
		},
		nvme.LogFirmwareSlot: {scope: onIO, page: firmwarePage, size: nvme.FirmwareLogSize},
		nvme.LogChangedNamespaces: {
			scope: onIO, page: changedPage, size: 4 * nvme.NamespacesPerList,
		},
		nvme.LogEffects:  {page: effectsPage, size: nvme.EffectsLogSize, csi: true},
		nvme.LogSelfTest: {scope: onIO, page: selfTestPage, size: nvme.SelfTestLogSize},
		nvme.LogTelemetryHost: {
			scope: onIO, unit: nvme.TelemetryBlock,
			page: func(c *controller, q *nvme.SQE) admin.Reply {
				return c.telemetry.Page(q.GetLog())
			},
		},
		nvme.LogTelemetryCtrl: {
			scope: onIO, unit: nvme.TelemetryBlock,
			page: func(_ *controller, q *nvme.SQE) admin.Reply {
				return admin.NoTelemetry(q.GetLog())
			},
		},
		nvme.LogEnduranceGroup: {
			scope: onRotational, page: enduranceGroupPage, size: nvme.EnduranceGroupLogSize,
		},
		nvme.LogANA:            {scope: onIO, page: anaPage, size: ana.LogSize(namespaces.MaxNSID)},
		nvme.LogFeatureEffects: {page: featureEffectsPage, size: nvme.FeatureEffectsSize},
		nvme.LogMIEffects:      {page: emptyPage, size: miEffectsSize},
		nvme.LogRotationalMedia: {
			scope: onRotational, page: rotationalMediaPage, size: nvme.RotationalMediaLogSize,
		},
		nvme.LogReservation: {
			scope: onIO, page: reservationPage, size: nvme.ReservationLogSize,
		},
		nvme.LogDiscovery: {
			scope: onDiscovery, page: discoveryPage, specific: nvme.DiscoveryLocal,
		},
	}
}

func (p *logPage) supported(c *controller) bool { return p.page != nil && p.scope.has(c) }

func prepareGetLog(cm *cmd) nvme.Status {
	c, sqe := cm.s.ctrl, cm.req.SQE.GetLog()
	p := &logPages[sqe.LID()]
	unit := cmp.Or(p.unit, 4)
	switch n := sqe.Bytes(); {
	case !p.supported(c):
		return nvme.InvalidLogPage | nvme.DNR
	case sqe.OT() || sqe.LPO()%unit != 0 || n%unit != 0 || p.size > 0 && sqe.LPO() >= p.size:
		// no index offsets; an aligned offset within the page (Base section 5.1.12)
		return invalidField
	case p.csi && sqe.CSI() > nvme.CSILast:
		return invalidField
	case n > uint64(c.cfg.MaxTransfer):
		return invalidField
	}
	switch nsid := cm.req.SQE.NSID(); {
	case nsid == 0 || nsid == nvme.NSIDAll: // the whole controller or subsystem
	case cm.namespace() == nil:
		return noNamespace(nsid)
	case !p.perNamespace:
		return invalidField // no such log of a namespace (Base section 5.1.12)
	}
	return cm.expect(uint32(sqe.Bytes()))
}

func getLog(h *Handler, cm *cmd) {
	c, sqe := cm.s.ctrl, &cm.req.SQE
	log := sqe.GetLog()
	if !log.RAE() {
		// First: a change while the page is made raises the event again.
		c.events.Unmask(log.LID())
	}
	p := &logPages[log.LID()]
	off := log.LPO()
	if p.size == 0 {
		off = 0
	}
	h.reply(cm, 0, p.page(c, sqe), off)
}

func supportedPages(c *controller, _ *nvme.SQE) admin.Reply {
	var p nvme.SupportedPages
	for i := range logPages {
		if logPages[i].supported(c) {
			p.Add(nvme.LID(i))
			p.AddSpecific(nvme.LID(i), logPages[i].specific)
		}
	}
	return admin.Reply{Data: nvme.Append(nil, &p)}
}

func errorPage(c *controller, _ *nvme.SQE) admin.Reply { return admin.Reply{Data: c.errors.Page()} }

func firmwarePage(c *controller, _ *nvme.SQE) admin.Reply {
	l := &nvme.FirmwareLog{AFI: 1}
	nvme.PutText(l.FRS[0][:], c.t.options.Firmware)
	return admin.Reply{Data: nvme.Append(nil, l)}
}

// changedPage makes log 04h. Reading it without RAE clears it.
func changedPage(c *controller, sqe *nvme.SQE) admin.Reply {
	page := c.changed.Page()
	if !sqe.GetLog().RAE() {
		c.changed = admin.ChangedNamespaces{}
	}
	return admin.Reply{Data: page}
}

// effectsPage makes log 05h (Base section 5.1.12.1.6). Of a command set that the controller lacks,
// it has no command: nvme-cli asks for the zoned one as well, because CAP offers command sets.
func effectsPage(c *controller, sqe *nvme.SQE) admin.Reply {
	l := &nvme.EffectsLog{Admin: effects(c, &adminOps, scopeController)}
	if !c.sub.discovery && sqe.GetLog().CSI() == nvme.CSINVM {
		l.IO = effects(c, &ioOps, scopeNone)
	}
	return admin.Reply{Data: nvme.Append(nil, l)}
}

func featureEffectsPage(c *controller, _ *nvme.SQE) admin.Reply {
	l := new(nvme.FeatureEffectsLog)
	for i := range features {
		if f := c.feature(nvme.FID(i)); f != nil {
			l[i] = nvme.FeatureSupported | cmp.Or(f.fsp, nvme.FeatureScopeController)
		}
	}
	return admin.Reply{Data: nvme.Append(nil, l)}
}

func emptyPage(*controller, *nvme.SQE) admin.Reply { return admin.Reply{} }
