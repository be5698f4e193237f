package controllers

import (
	"cmp"
	"math"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// Feature is a feature of a controller.
type Feature struct {
	scope Scope
	// FSP is the scope of the feature in log 12h; 0: the controller.
	FSP nvme.FeatureEffect
	// value is the default.
	value func(c *Controller) uint32
	// set takes a new value (CDW11) and applies it. It returns the value to store, which is also
	// the result (DW0) if report is set. nil: the feature cannot be changed.
	set    func(c *Controller, v uint32) (uint32, nvme.Status)
	report bool
	// fixed is the status of Set Features without set; 0: Feature Not Changeable.
	fixed nvme.Status
	// read, if set, returns the value that Get Features asks for, in place of the stored one.
	read func(c *Controller, sqe *nvme.FeaturesSQE) uint32
	// valid checks CDW11 of Get Features; nil: any value is valid.
	valid func(v uint32) bool
	// survivesReset: a Controller Reset does not restore the default.
	survivesReset bool
	// Size is the number of bytes that Get Features returns, and page makes them. If take is set,
	// Set Features brings as many: take checks and stores them in place of set.
	Size uint32
	page func(c *Controller) []byte
	take func(c *Controller, data []byte) nvme.Status
	// get is set for a feature with a value for each namespace, and either each or Changes. The
	// default is 0. Any goroutine calls each, with a value that has no bits besides bits.
	get  func(ns *namespaces.Namespace) uint32
	each func(ns *namespaces.Namespace, v uint32)
	bits uint32
	// Changes: a change takes time, and the caller makes it.
	Changes bool
	// accesses: not available for namespaces that ANA states make inaccessible.
	accesses bool
	// single: Get Features with NSID FFFFFFFFh is Invalid Field, and so is any NSID that names no
	// namespace. anyNSID: with NSID 0 it returns the default, which SPDK's compliance tool asks
	// for.
	single, anyNSID bool
}

// featureState has the features of a controller.
type featureState struct {
	Features     [256]uint32 // values
	clock        admin.Clock
	hostBehavior admin.HostBehavior
	CopyFormats  atomic.Uint32 // CDFE of hostBehavior, for other reactors
}

const hostIdentifierSize = 16

// features is the table of features (Base section 5.1.25.1). init fills it, because some of its
// functions read it.
var features [256]Feature

func init() {
	features = [256]Feature{
		nvme.FeatureArbitration: {
			scope: OnIO, value: constant(7), set: store, // burst: no limit
		},
		nvme.FeaturePowerManagement: {
			scope: OnIO, value: constant(0), set: zero(0x1F), // power state 0, the only one
		},
		nvme.FeatureTemperatureThreshold: {
			scope: OnIO, value: constant(0xFFFF), set: setThreshold, valid: admin.ValidThreshold,
			read: func(c *Controller, q *nvme.FeaturesSQE) uint32 { return c.thresholds.Get(q) },
		},
		nvme.FeatureErrorRecovery: {
			scope: OnIO, value: constant(0), FSP: nvme.FeatureScopeNamespace, accesses: true,
			anyNSID: true, bits: math.MaxUint32 &^ nvme.ErrorRecoveryDULBE,
			// TLER (NVM section 4.1.3). The target tries nothing again, so any limit is met.
			// Deallocated blocks can be read (NSFEAT bit 2 is 0), so there is no DULBE.
			get:  func(ns *namespaces.Namespace) uint32 { return ns.ErrorRecovery.Load() },
			each: func(ns *namespaces.Namespace, v uint32) { ns.ErrorRecovery.Store(v & 0xFFFF) },
		},
		nvme.FeatureVolatileWriteCache: {
			scope: withCache, value: constant(1), set: setWriteCache,
		},
		nvme.FeatureNumberOfQueues: {
			scope: OnIO, value: defaultQueues, set: setQueues, report: true,
		},
		// Fabrics have no interrupts, so nothing can be set. SPDK's compliance tool reads these.
		nvme.FeatureInterruptCoalescing: {scope: OnIO, value: constant(0)},
		nvme.FeatureInterruptVector: {
			scope: OnIO, value: constant(nvme.InterruptNotCoalesced),
			// There is at most one vector (Base section 5.1.25.2.3).
			valid: func(v uint32) bool { return v&0xFFFF == 0 },
		},
		nvme.FeatureWriteAtomicity: {
			scope: OnIO, value: constant(0), set: store, // one block either way
		},
		nvme.FeatureAsyncEventConfig: {value: constant(0), set: setEvents},
		nvme.FeatureTimestamp: {
			scope: OnIO, value: constant(0), Size: nvme.TimestampSize, set: store,
			page: func(c *Controller) []byte { return c.clock.Page(c.Reactor.Now()) },
			take: (*Controller).setTimestamp,
		},
		nvme.FeatureHostBehavior: {
			scope: OnIO, value: constant(0), Size: nvme.HostBehaviorSize, set: store,
			page: func(c *Controller) []byte { return c.hostBehavior[:] },
			take: (*Controller).setHostBehavior,
		},
		nvme.FeatureKeepAliveTimer: {
			value: constant(0), set: setKeepAlive, survivesReset: true,
		},
		nvme.FeatureCommandSetProfile: {
			scope: OnIO, value: constant(0), set: setCommandSets,
		},
		nvme.FeatureSpinupControl: {
			// Drives spin up by themselves (Base section 5.1.25.1.18).
			scope: onRotational, value: constant(0), set: zero(1), FSP: nvme.FeatureScopeSubsystem,
		},
		nvme.FeatureHostIdentifier: {
			value: constant(0), Size: hostIdentifierSize,
			page: func(c *Controller) []byte { return c.HostID[:] },
			// Base section 5.1.25.1.28: Connect has set it. Over fabrics it has 128 bits (EXHID).
			fixed: sequenceError, valid: func(v uint32) bool { return v&1 != 0 },
		},
		nvme.FeatureReservationMask: {
			scope: OnIO, value: constant(0), FSP: nvme.FeatureScopeNamespace,
			get:    func(ns *namespaces.Namespace) uint32 { return ns.Reservations.Mask.Load() },
			each:   func(ns *namespaces.Namespace, v uint32) { ns.Reservations.Mask.Store(v) },
			bits:   nvme.ReservationMaskAll,
			single: true, accesses: true, // Base section 5.1.25.1.29
		},
		nvme.FeatureReservationPersist: {
			scope: OnIO, value: constant(0), FSP: nvme.FeatureScopeNamespace, get: reservationPTPL,
			Changes: true, single: true, accesses: true, // Base section 5.1.25.1.30
		},
		nvme.FeatureWriteProtect: {
			scope: withProtection, value: constant(0), FSP: nvme.FeatureScopeNamespace,
			get:     func(ns *namespaces.Namespace) uint32 { return uint32(ns.Protection()) },
			Changes: true,
		},
	}
}

func constant(v uint32) func(*Controller) uint32 { return func(*Controller) uint32 { return v } }

// withCache: without a cache there is no feature (Base section 5.1.25.1.4).
func withCache(c *Controller) bool { return OnIO(c) && c.cached }

// Feature returns the feature if this controller has it, or nil.
func (c *Controller) Feature(fid nvme.FID) *Feature {
	f := &features[fid]
	if f.value == nil || !f.scope.Has(c) {
		return nil
	}
	return f
}

// resetFeatures gives every feature its default.
func (c *Controller) resetFeatures() {
	for i := range features {
		if f := &features[i]; f.value != nil && !f.survivesReset {
			c.Features[i] = f.value(c)
		}
	}
	c.thresholds, c.beyondLimit = admin.DefaultThresholds, false
	c.clock = admin.NewClock(c.Reactor.Now())
	clear(c.hostBehavior[:])
	c.CopyFormats.Store(0)
}

// isFixed reports whether Set Features cannot change the feature.
func (f *Feature) isFixed() bool { return f.set == nil && !f.Changes && f.each == nil }

// checkGetFeatures checks a Get Features command with a buffer of n bytes. Hosts may pass a buffer
// for any feature; it is zeroed.
func (c *Controller) checkGetFeatures(q *nvme.SQE, n uint32) nvme.Status {
	sqe := q.Features()
	f := c.Feature(sqe.FID())
	if f == nil || sqe.SEL() > nvme.FeatureCapabilities {
		return invalidField
	}
	need := f.Size
	switch {
	case f.single && q.NSID() == nvme.NSIDAll:
		return invalidField
	case f.FSP == nvme.FeatureScopeNamespace && c.Namespace(q.NSID()) == nil &&
		(q.NSID() != 0 || !f.anyNSID):
		return f.noNamespace(q.NSID())
	case sqe.SEL() == nvme.FeatureCapabilities:
		need = 0
	case f.valid != nil && !f.valid(sqe.Value()):
		return invalidField
	}
	if n < need || int(n) > c.Settings.MaxTransfer {
		return invalidLength
	}
	return f.anaRefuses(c, q.NSID(), false)
}

// GetFeatures carries out a Get Features command that was checked.
func (c *Controller) GetFeatures(q *nvme.SQE) (v uint32, data []byte, st nvme.Status) {
	sqe := q.Features()
	f := c.Feature(sqe.FID())
	if f == nil { // the controller was enabled again while the command waited
		return 0, nil, invalidField
	}
	switch sqe.SEL() {
	case nvme.FeatureCapabilities:
		if f.FSP == nvme.FeatureScopeNamespace {
			v |= nvme.FeatureCapNamespaceSpecific
		}
		if !f.isFixed() {
			v |= nvme.FeatureCapChangeable
		}
		return v, nil, nvme.Success
	case nvme.FeatureCurrent:
		if v = c.Features[sqe.FID()]; f.get != nil && q.NSID() != 0 {
			ns := c.Namespace(q.NSID())
			if ns == nil { // it was removed meanwhile
				return 0, nil, invalidField
			}
			v = f.get(ns)
		}
	default: // nothing is saved, so the saved value is the default
		v = f.value(c)
	}
	switch {
	case f.page != nil && (sqe.SEL() == nvme.FeatureCurrent || f.take == nil):
		data = f.page(c) // data that can be set defaults to zeroes
	case f.read != nil:
		v = f.read(c, sqe)
	}
	return v, data, nvme.Success
}

// checkSetFeatures checks a Set Features command, and returns the number of bytes that it brings.
func (c *Controller) checkSetFeatures(q *nvme.SQE) (n uint32, st nvme.Status) {
	sqe := q.Features()
	f := c.Feature(sqe.FID())
	switch {
	case f == nil:
		return 0, invalidField
	case sqe.SV():
		return 0, nvme.FeatureNotSaveable | nvme.DNR
	}
	if st := cmp.Or(f.checkNSID(c, q.NSID()), f.anaRefuses(c, q.NSID(), true)); !st.OK() {
		return 0, st
	}
	switch {
	case f.isFixed():
		return 0, cmp.Or(f.fixed, nvme.FeatureNotChangeable|nvme.DNR)
	case f.take != nil:
		return f.Size, nvme.Success
	}
	return 0, nvme.Success
}

// checkNSID checks the NSID of Set Features. 0 and FFFFFFFFh are the controller, or all namespaces.
func (f *Feature) checkNSID(c *Controller, nsid uint32) nvme.Status {
	switch {
	case nsid == nvme.NSIDAll, nsid == 0 && f.FSP != nvme.FeatureScopeNamespace:
		return nvme.Success
	case f.FSP != nvme.FeatureScopeNamespace && nsid <= namespaces.MaxNSID:
		return nvme.FeatureNotPerNamespace | nvme.DNR // Base section 4.2.3.2, 0Fh
	case c.Namespace(nsid) == nil:
		return f.noNamespace(nsid)
	}
	return nvme.Success
}

func (f *Feature) noNamespace(nsid uint32) nvme.Status {
	if f.single {
		return invalidField
	}
	return NoNamespace(nsid)
}

// CheckValue checks the value of a feature of namespaces.
func (f *Feature) CheckValue(v uint32) nvme.Status {
	if f.each != nil && v&^f.bits != 0 {
		return invalidField
	}
	return nvme.Success
}

// Set begins to set a feature in the namespaces of list. all: these are all that the host may use.
// Any goroutine may call it.
func (f *Feature) Set(a *ana.States, list []*namespaces.Namespace, all bool, v uint32) nvme.Status {
	for i := 0; all && a != nil && i < len(list); i++ {
		if st := a.Of(list[i].Attributes().ANAGroup).Status(); !st.OK() {
			return st
		}
	}
	for i := 0; f.each != nil && i < len(list); i++ {
		f.each(list[i], v)
	}
	return nvme.Success
}

// Apply sets a feature of the controller. data has as many bytes as checkSetFeatures asks for. A
// feature of namespaces has no more to be set.
func (f *Feature) Apply(c *Controller, sqe *nvme.FeaturesSQE, data []byte) (result uint64,
	st nvme.Status,
) {
	switch {
	case f.each != nil:
		return 0, nvme.Success
	case f.take != nil:
		return 0, f.take(c, data)
	}
	v, st := f.set(c, sqe.Value())
	if st.OK() {
		c.Features[sqe.FID()] = v
		if f.report {
			result = uint64(v)
		}
	}
	return result, st
}

// anaRefuses is the status of Get Features or Set Features if a feature is not available (Base
// section 8.1.1.10, figure 588).
func (f *Feature) anaRefuses(c *Controller, nsid uint32, set bool) nvme.Status {
	a, ns := c.ANAStates(), c.Namespace(nsid)
	switch {
	case f.FSP != nvme.FeatureScopeNamespace || ns == nil:
		return nvme.Success
	case f.Changes && ns.Reservations.Elsewhere(): // it is not known here
		return nvme.ANAInaccessible
	case a == nil:
		return nvme.Success
	}
	st := a.Of(ns.Attributes().ANAGroup).Status()
	if f.accesses || set && st == nvme.ANAPersistentLoss {
		return st
	}
	return nvme.Success
}

// store accepts any value.
func store(_ *Controller, v uint32) (uint32, nvme.Status) { return v, nvme.Success }

// zero accepts values in which these bits are 0.
func zero(bits uint32) func(*Controller, uint32) (uint32, nvme.Status) {
	return func(_ *Controller, v uint32) (uint32, nvme.Status) {
		if v&bits != 0 {
			return 0, invalidField
		}
		return v, nvme.Success
	}
}

func setWriteCache(c *Controller, v uint32) (uint32, nvme.Status) {
	c.WriteThrough.Store(v&1 == 0)
	return v, nvme.Success
}

func setKeepAlive(c *Controller, v uint32) (uint32, nvme.Status) {
	if v > admin.MaxKeepAlive {
		return 0, nvme.KATOInvalid | nvme.DNR // too large (Base section 4.2.3.1, 1Ah)
	}
	return c.Hooks.SetKeepAlive(v), nvme.Success
}

func defaultQueues(c *Controller) uint32 {
	return uint32(nvme.MakeNumberOfQueues(c.Settings.MaxIOQueues))
}

// setQueues grants I/O queues (Base section 5.1.25.2.1): once, before any is connected.
func setQueues(c *Controller, v uint32) (uint32, nvme.Status) {
	ask := nvme.NumberOfQueues(v)
	if v&0xFFFF == 0xFFFF || v>>16 == 0xFFFF {
		return 0, invalidField
	}
	n := min(max(ask.Submission(), ask.Completion()), c.Settings.MaxIOQueues)
	if !c.Hooks.Grant(n) {
		return 0, sequenceError
	}
	return uint32(nvme.MakeNumberOfQueues(n)), nvme.Success
}

// setEvents selects the events that are reported (Base section 5.1.25.1.5).
func setEvents(c *Controller, v uint32) (uint32, nvme.Status) {
	allowed := admin.SupportedEvents(c.Subsystem.Discovery)
	if OnIO(c) {
		allowed |= nvme.EventSMARTMask
	}
	if nvme.EventMask(v)&^allowed != 0 {
		return 0, invalidField
	}
	c.Events.Enabled = nvme.EventMask(v)
	return v, nvme.Success
}

func setThreshold(c *Controller, v uint32) (uint32, nvme.Status) {
	if !c.thresholds.Set(v) {
		return 0, invalidField
	}
	c.checkTemperature()
	return v, nvme.Success
}

func (c *Controller) setTimestamp(data []byte) nvme.Status {
	c.clock.Set(data, c.Reactor.Now())
	return nvme.Success
}

func (c *Controller) setHostBehavior(data []byte) nvme.Status {
	formats, ok := c.hostBehavior.Set(data)
	if !ok {
		return invalidField
	}
	c.CopyFormats.Store(uint32(formats))
	return nvme.Success
}

func reservationPTPL(ns *namespaces.Namespace) uint32 {
	if ns.Reservations.State().PTPL {
		return 1
	}
	return 0
}
