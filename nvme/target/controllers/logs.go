package controllers

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
	Errors         admin.ErrorLog
	changed        admin.ChangedNamespaces
	reservationLog reservation.Log
	SelfTest       SelfTest
	Telemetry      admin.Telemetry
	answers        queueAnswers // to Telemetry.Query
	ANALog         ana.Log
	anaStale       bool // namespaces have changed since the log was made
	DiscoveryLogs  discovery.Logs
	Remaking       admin.Asker // of discovery logs, see remakeLogs; nil: does not go on
}

// reset is a Controller Reset.
func (l *logs) reset() {
	l.changed, l.reservationLog = admin.ChangedNamespaces{}, reservation.Log{}
	l.ANALog, l.anaStale = ana.Log{}, false
}

// LogPage is a log page (Base section 5.1.12.1).
type LogPage struct {
	scope Scope
	page  pageFunc
	// Size is the length of the page. 0: it varies, and page returns the part from LPO on.
	Size uint64
	// unit is the granularity of offsets and lengths, in bytes; 0: dwords.
	unit uint64
	// CSI: the command set identifier matters.
	CSI bool
	// PerNamespace: the NSID may name a namespace.
	PerNamespace bool
	// specific is the LID Specific Parameter of log 00h.
	specific uint16
}

// miEffectsSize is the size of log 13h, which is empty: there is no management interface (Base
// section 5.1.12.1.19).
const miEffectsSize = 4096

// logPages is filled by init because log 00h, which is one of them, reads it.
var logPages [256]LogPage

func init() {
	logPages = [256]LogPage{
		nvme.LogSupportedPages: {page: supportedPages, Size: nvme.SupportedPagesSize},
		nvme.LogError: {
			page: errorPage, Size: admin.ErrorLogSize * nvme.ErrorLogEntrySize,
		},
		nvme.LogSMART: {
			scope: OnIO, page: healthPage, Size: nvme.SMARTLogSize, PerNamespace: true,
		},
		nvme.LogFirmwareSlot: {scope: OnIO, page: firmwarePage, Size: nvme.FirmwareLogSize},
		nvme.LogChangedNamespaces: {
			scope: OnIO, page: changedPage, Size: 4 * nvme.NamespacesPerList,
		},
		nvme.LogEffects:  {page: effectsPage, Size: nvme.EffectsLogSize, CSI: true},
		nvme.LogSelfTest: {scope: OnIO, page: selfTestPage, Size: nvme.SelfTestLogSize},
		nvme.LogTelemetryHost: {
			scope: OnIO, unit: nvme.TelemetryBlock,
			page: func(c *Controller, q *nvme.SQE) admin.Reply {
				return c.Telemetry.Page(q.GetLog())
			},
		},
		nvme.LogTelemetryCtrl: {
			scope: OnIO, unit: nvme.TelemetryBlock,
			page: func(_ *Controller, q *nvme.SQE) admin.Reply {
				return admin.NoTelemetry(q.GetLog())
			},
		},
		nvme.LogEnduranceGroup: {
			scope: onRotational, page: enduranceGroupPage, Size: nvme.EnduranceGroupLogSize,
		},
		nvme.LogANA:            {scope: OnIO, page: anaPage, Size: ana.LogSize(namespaces.MaxNSID)},
		nvme.LogFeatureEffects: {page: featureEffectsPage, Size: nvme.FeatureEffectsSize},
		nvme.LogMIEffects:      {page: emptyPage, Size: miEffectsSize},
		nvme.LogRotationalMedia: {
			scope: onRotational, page: rotationalMediaPage, Size: nvme.RotationalMediaLogSize,
		},
		nvme.LogReservation: {
			scope: OnIO, page: reservationPage, Size: nvme.ReservationLogSize,
		},
		nvme.LogDiscovery: {
			scope: onDiscovery, page: discoveryPage, specific: nvme.DiscoveryLocal,
		},
	}
}

// LogPage returns the log page if the controller has it, else nil.
func (c *Controller) LogPage(lid nvme.LID) *LogPage {
	p := &logPages[lid]
	if p.page == nil || !p.scope.Has(c) {
		return nil
	}
	return p
}

// checkGetLog checks a Get Log Page command.
func (c *Controller) checkGetLog(q *nvme.SQE) nvme.Status {
	sqe, nsid := q.GetLog(), q.NSID()
	p := c.LogPage(sqe.LID())
	if p == nil {
		return nvme.InvalidLogPage | nvme.DNR
	}
	unit, n := cmp.Or(p.unit, 4), sqe.Bytes()
	switch {
	case sqe.OT() || sqe.LPO()%unit != 0 || n%unit != 0 || p.Size > 0 && sqe.LPO() >= p.Size:
		// no index offsets; an aligned offset within the page (Base section 5.1.12)
		return invalidField
	case p.CSI && sqe.CSI() > nvme.CSILast:
		return invalidField
	case n > uint64(c.Settings.MaxTransfer):
		return invalidField
	case nsid == 0 || nsid == nvme.NSIDAll: // the whole controller or subsystem
	case c.Namespace(nsid) == nil:
		return NoNamespace(nsid)
	case !p.PerNamespace:
		return invalidField // no such log of a namespace (Base section 5.1.12)
	}
	return nvme.Success
}

// GetLog makes a log page, of which the host gets the part from off on.
func (c *Controller) GetLog(q *nvme.SQE) (r admin.Reply, off uint64) {
	log := q.GetLog()
	if !log.RAE() {
		// First: a change while the page is made raises the event again.
		c.Events.Unmask(log.LID())
	}
	p := &logPages[log.LID()]
	if p.Size > 0 {
		off = log.LPO()
	}
	return p.page(c, q), off
}

func supportedPages(c *Controller, _ *nvme.SQE) admin.Reply {
	var p nvme.SupportedPages
	for i := range logPages {
		if c.LogPage(nvme.LID(i)) != nil {
			p.Add(nvme.LID(i))
			p.AddSpecific(nvme.LID(i), logPages[i].specific)
		}
	}
	return admin.Reply{Data: nvme.Append(nil, &p)}
}

func errorPage(c *Controller, _ *nvme.SQE) admin.Reply { return admin.Reply{Data: c.Errors.Page()} }

func firmwarePage(c *Controller, _ *nvme.SQE) admin.Reply {
	l := &nvme.FirmwareLog{AFI: 1}
	nvme.PutText(l.FRS[0][:], c.Target.Firmware)
	return admin.Reply{Data: nvme.Append(nil, l)}
}

// changedPage makes log 04h. Reading it without RAE clears it.
func changedPage(c *Controller, sqe *nvme.SQE) admin.Reply {
	page := c.changed.Page()
	if !sqe.GetLog().RAE() {
		c.changed = admin.ChangedNamespaces{}
	}
	return admin.Reply{Data: page}
}

// effectsPage makes log 05h (Base section 5.1.12.1.6). Of a command set that the controller lacks,
// it has no command: nvme-cli asks for the zoned one as well, because CAP offers command sets.
func effectsPage(c *Controller, sqe *nvme.SQE) admin.Reply {
	l := new(nvme.EffectsLog)
	l.Admin, _ = c.Target.Commands(c, true)
	if !c.Subsystem.Discovery && sqe.GetLog().CSI() == nvme.CSINVM {
		l.IO, _ = c.Target.Commands(c, false)
	}
	return admin.Reply{Data: nvme.Append(nil, l)}
}

func featureEffectsPage(c *Controller, _ *nvme.SQE) admin.Reply {
	l := new(nvme.FeatureEffectsLog)
	for i := range features {
		if f := c.Feature(nvme.FID(i)); f != nil {
			l[i] = nvme.FeatureSupported | cmp.Or(f.FSP, nvme.FeatureScopeController)
		}
	}
	return admin.Reply{Data: nvme.Append(nil, l)}
}

func emptyPage(*Controller, *nvme.SQE) admin.Reply { return admin.Reply{} }

// NotifyReservation records a notification and reports it.
func (c *Controller) NotifyReservation(typ nvme.ReservationNotification, nsid uint32) {
	if !c.Ready.Load() {
		return // the next Controller Level Reset would clear it
	}
	c.reservationLog.Add(typ, nsid)
	c.Raise(admin.EventReservation)
}

// reservationPage makes log 80h.
func reservationPage(c *Controller, _ *nvme.SQE) admin.Reply {
	return admin.Reply{Data: c.reservationLog.Page()}
}
