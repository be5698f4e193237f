package target

import (
	"cmp"
	"math"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// feature is a feature of a controller.
type feature struct {
	scope scope
	// fsp is the scope of the feature in log 12h; 0: the controller.
	fsp nvme.FeatureEffect
	// value is the default.
	value func(c *controller) uint32
	// set takes a new value (CDW11) and applies it. It returns the value to store, which is also
	// the result (DW0) if report is set. nil: the feature cannot be changed.
	set    func(c *controller, v uint32) (uint32, nvme.Status)
	report bool
	// fixed is the status of Set Features without set; 0: Feature Not Changeable.
	fixed nvme.Status
	// read, if set, returns the value that Get Features asks for, in place of the stored one.
	read func(c *controller, sqe *nvme.FeaturesSQE) uint32
	// valid checks CDW11 of Get Features; nil: any value is valid.
	valid func(v uint32) bool
	// survivesReset: a Controller Reset does not restore the default.
	survivesReset bool
	// size is the number of bytes that Get Features returns, and page makes them. Set Features
	// brings as many if there is take, which checks and stores them in place of set.
	size uint32
	page func(c *controller) []byte
	take func(c *controller, data []byte) nvme.Status
	// get is set for a feature with a value for each namespace, and either each or change. The
	// default is 0. Any goroutine calls each, with a value that has no bits but those of bits.
	// change completes the command.
	get    func(ns *namespaces.Namespace) uint32
	each   func(ns *namespaces.Namespace, v uint32)
	bits   uint32
	change func(h *Handler, cm *cmd, list []*namespaces.Namespace, v uint32)
	// accesses: not available for namespaces that ANA states make inaccessible.
	accesses bool
	// single: Get Features with NSID FFFFFFFFh is Invalid Field, and so is any NSID that names no
	// namespace. anyNSID: with NSID 0 it returns the default, which SPDK's compliance tool asks
	// for.
	single, anyNSID bool
}

// featureState has the features of a controller.
type featureState struct {
	features     [256]uint32
	clock        admin.Clock
	hostBehavior admin.HostBehavior
	copyFormats  atomic.Uint32 // CDFE of hostBehavior, for other reactors
	// changing: a feature is being changed for many namespaces.
	changing bool
}

const hostIdentifierSize = 16

// features is the table of features (Base section 5.1.25.1). It is filled by init because some of
// its functions read it.
var features [256]feature

func init() {
	features = [256]feature{
		nvme.FeatureArbitration: {
			scope: onIO, value: constant(7), set: store, // burst: no limit
		},
		nvme.FeaturePowerManagement: {
			scope: onIO, value: constant(0), set: setPowerState,
		},
		nvme.FeatureTemperatureThreshold: {
			scope: onIO, value: constant(0xFFFF), set: setThreshold, read: readThreshold,
			valid: admin.ValidThreshold,
		},
		nvme.FeatureErrorRecovery: {
			scope: onIO, value: constant(0), fsp: nvme.FeatureScopeNamespace, accesses: true,
			get: errorRecovery, anyNSID: true, each: setErrorRecovery,
			bits: math.MaxUint32 &^ nvme.ErrorRecoveryDULBE,
		},
		nvme.FeatureVolatileWriteCache: {
			scope: withCache, value: constant(1), set: setWriteCache,
		},
		nvme.FeatureNumberOfQueues: {
			scope: onIO, value: defaultQueues, set: setQueues, report: true,
		},
		// Fabrics have no interrupts, so nothing can be set. SPDK's compliance tool reads these.
		nvme.FeatureInterruptCoalescing: {scope: onIO, value: constant(0)},
		nvme.FeatureInterruptVector: {
			scope: onIO, value: constant(nvme.InterruptNotCoalesced), valid: firstVector,
		},
		nvme.FeatureWriteAtomicity: {
			scope: onIO, value: constant(0), set: store, // one block either way
		},
		nvme.FeatureAsyncEventConfig: {value: constant(0), set: setEvents},
		nvme.FeatureTimestamp: {
			scope: onIO, value: constant(0), size: nvme.TimestampSize, set: store,
			page: (*controller).timestamp, take: (*controller).setTimestamp,
		},
		nvme.FeatureHostBehavior: {
			scope: onIO, value: constant(0), size: nvme.HostBehaviorSize, set: store,
			page: func(c *controller) []byte { return c.hostBehavior[:] },
			take: (*controller).setHostBehavior,
		},
		nvme.FeatureKeepAliveTimer: {
			value: constant(0), set: setKeepAlive, survivesReset: true,
		},
		nvme.FeatureCommandSetProfile: {
			scope: onIO, value: constant(0), set: setCommandSets,
		},
		nvme.FeatureSpinupControl: {
			scope: onRotational, value: constant(0), set: setSpinup,
			fsp: nvme.FeatureScopeSubsystem,
		},
		nvme.FeatureHostIdentifier: {
			value: constant(0), size: hostIdentifierSize, valid: extendedHostID,
			page:  func(c *controller) []byte { return c.hostID[:] },
			fixed: sequenceError, // Connect has set it (Base section 5.1.25.1.28)
		},
		nvme.FeatureReservationMask: {
			scope: onIO, value: constant(0), fsp: nvme.FeatureScopeNamespace, get: reservationMask,
			each: setReservationMask, bits: nvme.ReservationMaskAll,
			single: true, accesses: true, // Base section 5.1.25.1.29
		},
		nvme.FeatureReservationPersist: {
			scope: onIO, value: constant(0), fsp: nvme.FeatureScopeNamespace, get: reservationPTPL,
			change: setReservationPTPL, single: true, accesses: true, // Base section 5.1.25.1.30
		},
		nvme.FeatureWriteProtect: {
			scope: withProtection, value: constant(0), fsp: nvme.FeatureScopeNamespace,
			get: writeProtection, change: setWriteProtection,
		},
	}
}

func constant(v uint32) func(*controller) uint32 { return func(*controller) uint32 { return v } }

// withCache: without a cache there is no feature (Base section 5.1.25.1.4).
func withCache(c *controller) bool { return onIO(c) && c.cached }

// feature returns the feature if this controller has it, or nil.
func (c *controller) feature(fid nvme.FID) *feature {
	f := &features[fid]
	if f.value == nil || !f.scope.has(c) {
		return nil
	}
	return f
}

// resetFeatures gives every feature its default.
func (c *controller) resetFeatures() {
	for i := range features {
		if f := &features[i]; f.value != nil && !f.survivesReset {
			c.features[i] = f.value(c)
		}
	}
	c.thresholds, c.beyondLimit = admin.DefaultThresholds, false
	c.clock = admin.NewClock(c.h.loop.Now())
	clear(c.hostBehavior[:])
	c.copyFormats.Store(0)
}

// isFixed reports whether Set Features cannot change the feature.
func (f *feature) isFixed() bool { return f.set == nil && f.change == nil && f.each == nil }

func prepareGetFeatures(cm *cmd) nvme.Status {
	sqe := cm.req.SQE.Features()
	f := cm.s.ctrl.feature(sqe.FID())
	if f == nil || sqe.SEL() > nvme.FeatureCapabilities {
		return invalidField
	}
	need, n := f.size, cm.req.HostLength
	switch {
	case f.single && cm.req.SQE.NSID() == nvme.NSIDAll:
		return invalidField
	case f.fsp == nvme.FeatureScopeNamespace && cm.namespace() == nil &&
		(cm.req.SQE.NSID() != 0 || !f.anyNSID):
		return f.noNamespace(cm.req.SQE.NSID())
	case sqe.SEL() == nvme.FeatureCapabilities:
		need = 0
	case f.valid != nil && !f.valid(sqe.Value()):
		return invalidField
	}
	if n < need || int(n) > cm.s.ctrl.cfg.MaxTransfer {
		return invalidLength
	}
	if st := f.anaRefuses(cm, false); !st.OK() {
		return st
	}
	return cm.expect(n) // hosts may pass a buffer for any feature; it is zeroed
}

func getFeatures(h *Handler, cm *cmd) {
	c, sqe := cm.s.ctrl, cm.req.SQE.Features()
	f := c.feature(sqe.FID())
	var v uint32
	var data []byte
	switch sqe.SEL() {
	case nvme.FeatureCapabilities:
		if f.fsp == nvme.FeatureScopeNamespace {
			v |= nvme.FeatureCapNamespaceSpecific
		}
		if !f.isFixed() {
			v |= nvme.FeatureCapChangeable
		}
	case nvme.FeatureCurrent:
		if v = c.features[sqe.FID()]; f.get != nil && cm.req.SQE.NSID() != 0 {
			ns := cm.namespace()
			if ns == nil { // it was removed meanwhile
				h.finish(cm, 0, inactiveNamespace)
				return
			}
			v = f.get(ns)
		}
	default: // nothing is saved, so the saved value is the default
		v = f.value(c)
	}
	switch {
	case sqe.SEL() == nvme.FeatureCapabilities:
	case f.page != nil && (sqe.SEL() == nvme.FeatureCurrent || f.take == nil):
		data = f.page(c) // data that can be set defaults to zeroes
	case f.read != nil:
		v = f.read(c, sqe)
	}
	h.reply(cm, uint64(v), admin.Reply{Data: data}, 0)
}

func prepareSetFeatures(cm *cmd) nvme.Status {
	sqe := cm.req.SQE.Features()
	f := cm.s.ctrl.feature(sqe.FID())
	switch {
	case f == nil:
		return invalidField
	case sqe.SV():
		return nvme.FeatureNotSaveable | nvme.DNR
	}
	if st := cmp.Or(f.checkNSID(cm), f.anaRefuses(cm, true)); !st.OK() {
		return st
	}
	switch {
	case f.isFixed():
		return cmp.Or(f.fixed, nvme.FeatureNotChangeable|nvme.DNR)
	case f.take != nil:
		return cm.expect(f.size)
	}
	return cm.expect(0)
}

// checkNSID checks the NSID of a Set Features command. 0 and FFFFFFFFh mean the controller, or
// every namespace.
func (f *feature) checkNSID(cm *cmd) nvme.Status {
	switch nsid := cm.req.SQE.NSID(); {
	case nsid == nvme.NSIDAll, nsid == 0 && f.fsp != nvme.FeatureScopeNamespace:
		return nvme.Success
	case f.fsp != nvme.FeatureScopeNamespace && nsid <= namespaces.MaxNSID:
		return nvme.FeatureNotPerNamespace | nvme.DNR // Base section 4.2.3.2, 0Fh
	case cm.namespace() == nil:
		return f.noNamespace(nsid)
	}
	return nvme.Success
}

func (f *feature) noNamespace(nsid uint32) nvme.Status {
	if f.single {
		return invalidField
	}
	return noNamespace(nsid)
}

func setFeatures(h *Handler, cm *cmd) {
	f, v := &features[cm.req.SQE.Features().FID()], cm.req.SQE.Features().Value()
	a := cm.s.ctrl.anaStates()
	if f.each != nil && v&^f.bits != 0 {
		h.finish(cm, 0, invalidField)
		return
	}
	h.named(cm, func(list []*namespaces.Namespace, all bool) (st nvme.Status) {
		for i := 0; all && a != nil && i < len(list) && st.OK(); i++ {
			st = a.Of(list[i].Attributes().ANAGroup).Status()
		}
		for i := 0; f.each != nil && i < len(list) && st.OK(); i++ {
			f.each(list[i], v)
		}
		return st
	}, func(list []*namespaces.Namespace) {
		switch {
		case f.each != nil:
			h.finish(cm, 0, nvme.Success)
		case f.change != nil:
			f.change(h, cm, list, v)
		default:
			f.apply(h, cm)
		}
	})
}

// apply sets a feature of the controller.
func (f *feature) apply(h *Handler, cm *cmd) {
	c, sqe := cm.s.ctrl, cm.req.SQE.Features()
	if f.take != nil {
		data := make([]byte, f.size)
		from := mem.NewCursor(cm.req.Segs, 0)
		from.CopyTo(data)
		h.finish(cm, 0, f.take(c, data))
		return
	}
	v, st := f.set(c, sqe.Value())
	var result uint64
	if st.OK() {
		c.features[sqe.FID()] = v
		if f.report {
			result = uint64(v)
		}
	}
	h.finish(cm, result, st)
}

// named calls look, and then, on the reactor, then with the namespaces that the NSID of a command
// names: one, all, or none. All may be thousands: another goroutine looks at them. The command
// completes with the status of look unless that is Success.
func (h *Handler) named(cm *cmd, look func(list []*namespaces.Namespace, all bool) nvme.Status,
	then func(list []*namespaces.Namespace),
) {
	c, nsid := cm.s.ctrl, cm.req.SQE.NSID()
	if nsid != nvme.NSIDAll {
		var list []*namespaces.Namespace
		if ns := c.namespace(nsid); ns != nil {
			list = []*namespaces.Namespace{ns}
		}
		if st := look(list, false); !st.OK() {
			h.finish(cm, 0, st)
			return
		}
		then(list)
		return
	}
	var list []*namespaces.Namespace
	var st nvme.Status
	h.elsewhere(cm, func() {
		list = c.namespaces()
		st = look(list, true)
	}, func() {
		switch {
		case cm.s.queue.Over || !c.ready.Load():
			h.finish(cm, 0, nvme.AbortRequested)
		case !st.OK():
			h.finish(cm, 0, st)
		default:
			then(list)
		}
	})
}

// store accepts any value.
func store(_ *controller, v uint32) (uint32, nvme.Status) { return v, nvme.Success }

// storeIf accepts a value under a condition.
func storeIf(ok bool, v uint32) (uint32, nvme.Status) {
	if !ok {
		return 0, invalidField
	}
	return v, nvme.Success
}

// setPowerState accepts power state 0, the only one.
func setPowerState(_ *controller, v uint32) (uint32, nvme.Status) { return storeIf(v&0x1F == 0, v) }

// extendedHostID checks EXHID: host identifiers have 128 bits over fabrics (Base section
// 5.1.25.1.28).
func extendedHostID(v uint32) bool { return v&1 != 0 }

// firstVector checks IV of Get Features: there is at most one vector (Base section 5.1.25.2.3).
func firstVector(v uint32) bool { return v&0xFFFF == 0 }

func setWriteCache(c *controller, v uint32) (uint32, nvme.Status) {
	c.writeThrough.Store(v&1 == 0)
	return v, nvme.Success
}

func setKeepAlive(c *controller, v uint32) (uint32, nvme.Status) {
	if v > admin.MaxKeepAlive {
		return 0, nvme.KATOInvalid | nvme.DNR // too large (Base section 4.2.3.1, 1Ah)
	}
	return c.setKeepAlive(v), nvme.Success
}

// setSpinup accepts only that drives spin up by themselves (Base section 5.1.25.1.18).
func setSpinup(_ *controller, v uint32) (uint32, nvme.Status) { return storeIf(v&1 == 0, v) }

func defaultQueues(c *controller) uint32 {
	return uint32(nvme.MakeNumberOfQueues(c.cfg.MaxIOQueues))
}

// setQueues grants I/O queues (Base section 5.1.25.2.1): once, before any is connected.
func setQueues(c *controller, v uint32) (uint32, nvme.Status) {
	ask := nvme.NumberOfQueues(v)
	if v&0xFFFF == 0xFFFF || v>>16 == 0xFFFF {
		return 0, invalidField
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queues) > 0 {
		return 0, sequenceError
	}
	c.granted = min(max(ask.Submission(), ask.Completion()), c.cfg.MaxIOQueues)
	return uint32(nvme.MakeNumberOfQueues(c.granted)), nvme.Success
}

// setEvents selects the events that are reported (Base section 5.1.25.1.5).
func setEvents(c *controller, v uint32) (uint32, nvme.Status) {
	allowed := admin.SupportedEvents(c.sub.discovery)
	if onIO(c) {
		allowed |= nvme.EventSMARTMask
	}
	if nvme.EventMask(v)&^allowed != 0 {
		return 0, invalidField
	}
	c.events.Enabled = nvme.EventMask(v)
	return v, nvme.Success
}
