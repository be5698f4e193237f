package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
)

// feature is a feature of a controller; the values are controller.features. A feature without a set
// function cannot be changed.
type feature struct {
	def func(c *controller) uint32
	// set takes a new value (CDW11) and answers the result (DW0).
	set func(c *controller, v uint32) (uint32, nvme.Status)
	// data is the number of bytes that Get Features returns; page makes them.
	data uint32
	page func(c *controller) []byte
	// namespaceScope and ioController: what log 12h says, and not on discovery controllers.
	namespaceScope, ioController bool
}

const hostIdentifierSize = 16

// features is the table of features (Base section 5.1.25.1). It is filled by init because the
// functions read it.
var features [256]feature

func init() {
	features = [256]feature{
		nvme.FeatureArbitration: {
			def: constant(7), set: store, ioController: true, // burst: no limit
		},
		nvme.FeaturePowerManagement: {
			def: constant(0), set: setPowerState, ioController: true,
		},
		nvme.FeatureTemperatureThreshold: {
			def: constant(0xFFFF), set: setThreshold, ioController: true,
		},
		nvme.FeatureErrorRecovery: {
			def: constant(0), namespaceScope: true, ioController: true,
		},
		nvme.FeatureVolatileWriteCache: {
			def: constant(1), set: store, ioController: true, // see applyFeature
		},
		nvme.FeatureNumberOfQueues: {
			def: defaultQueues, set: setQueues, ioController: true,
		},
		nvme.FeatureWriteAtomicity: {
			def: constant(0), set: store, ioController: true, // one block either way
		},
		nvme.FeatureAsyncEventConfig: {
			def: constant(0), set: setEvents,
		},
		nvme.FeatureKeepAliveTimer: {
			def: constant(0), set: store, // see applyFeature
		},
		nvme.FeatureHostIdentifier: {
			def: constant(0), data: hostIdentifierSize,
			page: func(c *controller) []byte { return c.hostID[:] },
		},
	}
}

func constant(v uint32) func(*controller) uint32 { return func(*controller) uint32 { return v } }

// feature returns the feature that this controller has, or nil.
func (c *controller) feature(fid nvme.FID) *feature {
	f := &features[fid]
	if f.def == nil || f.ioController && c.sub.discovery {
		return nil
	}
	if fid == nvme.FeatureVolatileWriteCache && !c.vwc {
		return nil // no cache, no feature (Base section 5.1.25.1.4)
	}
	return f
}

// resetFeatures gives every feature its default but the keep alive timer, which a reset does not
// touch.
func (c *controller) resetFeatures() {
	for i := range features {
		if f := &features[i]; f.def != nil && nvme.FID(i) != nvme.FeatureKeepAliveTimer {
			c.features[i] = f.def(c)
		}
	}
}

func prepareGetFeatures(cm *cmd) nvme.Status {
	sqe := cm.req.SQE.Features()
	f := cm.s.ctrl.feature(sqe.FID())
	if f == nil || sqe.SEL() > nvme.FeatureCapabilities {
		return invalidField
	}
	need, n := f.data, cm.req.HostLength
	switch {
	case f.namespaceScope && cm.unknownNamespace():
		return invalidNamespace
	case sqe.SEL() == nvme.FeatureCapabilities:
		need = 0
	case sqe.FID() == nvme.FeatureHostIdentifier && sqe.Value()&1 == 0:
		return invalidField // EXHID: 128 bits over fabrics (Base section 5.1.25.1.28)
	case sqe.FID() == nvme.FeatureTemperatureThreshold && !compositeThreshold(sqe.Value()):
		return invalidField
	}
	if n < need || int(n) > cm.s.ctrl.sub.cfg.MaxTransfer {
		return invalidLength
	}
	return cm.expect(n) // hosts may pass a buffer whatever the feature is; it is zeroed
}

// unknownNamespace says that the command names one namespace, and there is none of that identifier.
func (c *cmd) unknownNamespace() bool {
	nsid := c.req.SQE.NSID()
	return nsid != 0 && nsid != nvme.NSIDAll && c.namespace() == nil
}

func getFeatures(h *Handler, cm *cmd) {
	c, sqe := cm.s.ctrl, cm.req.SQE.Features()
	f := c.feature(sqe.FID())
	var v uint32
	var data []byte
	switch sqe.SEL() {
	case nvme.FeatureCapabilities:
		if f.namespaceScope {
			v |= nvme.FeatureCapNamespaceSpecific
		}
		if f.set != nil {
			v |= nvme.FeatureCapChangeable
		}
	case nvme.FeatureCurrent:
		v = c.features[sqe.FID()]
	default: // nothing is saved, so the saved value is the default
		v = f.def(c)
	}
	if f.page != nil && sqe.SEL() != nvme.FeatureCapabilities {
		data = f.page(c)
	}
	h.reply(cm, uint64(v), data)
}

func prepareSetFeatures(cm *cmd) nvme.Status {
	sqe := cm.req.SQE.Features()
	f := cm.s.ctrl.feature(sqe.FID())
	switch {
	case f == nil:
		return invalidField
	case sqe.SV():
		return nvme.FeatureNotSaveable | nvme.DNR
	case sqe.FID() == nvme.FeatureHostIdentifier:
		return sequenceError // the Connect command has set it (Base section 5.1.25.1.28)
	case f.set == nil:
		return nvme.FeatureNotChangeable | nvme.DNR
	}
	return cm.expect(0)
}

func setFeatures(h *Handler, cm *cmd) {
	c, sqe := cm.s.ctrl, cm.req.SQE.Features()
	fid := sqe.FID()
	result, st := features[fid].set(c, sqe.Value())
	if st.OK() {
		c.applyFeature(fid, sqe.Value(), result)
	}
	h.finish(cm, uint64(result), st)
}

// applyFeature stores an accepted value and makes it effective.
func (c *controller) applyFeature(fid nvme.FID, v, result uint32) {
	switch fid {
	case nvme.FeatureNumberOfQueues:
		v = result
	case nvme.FeatureKeepAliveTimer:
		v = roundKeepAlive(v)
	}
	c.features[fid] = v
	switch fid {
	case nvme.FeatureVolatileWriteCache:
		c.writeThrough.Store(v&1 == 0)
	case nvme.FeatureKeepAliveTimer:
		c.armKeepAlive()
	}
}

// store accepts any value.
func store(*controller, uint32) (uint32, nvme.Status) { return 0, nvme.Success }

// setPowerState accepts power state 0, the only one.
func setPowerState(_ *controller, v uint32) (uint32, nvme.Status) {
	if v&0x1F != 0 {
		return 0, invalidField
	}
	return 0, nvme.Success
}

// setThreshold accepts any threshold: the temperature never changes.
func setThreshold(_ *controller, v uint32) (uint32, nvme.Status) {
	if !compositeThreshold(v) {
		return 0, invalidField
	}
	return 0, nvme.Success
}

// compositeThreshold says whether TMPSEL and THSEL name a threshold that exists: the composite
// temperature's (Base section 5.1.25.1.3).
func compositeThreshold(v uint32) bool { return v>>16&0xF == 0 && v>>20&3 == 0 }

func defaultQueues(c *controller) uint32 {
	return uint32(nvme.MakeNumberOfQueues(c.sub.cfg.MaxIOQueues))
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
	c.granted = min(max(ask.Submission(), ask.Completion()), c.sub.cfg.MaxIOQueues)
	return uint32(nvme.MakeNumberOfQueues(c.granted)), nvme.Success
}

// setEvents selects the events that are reported (Base section 5.1.25.1.5).
func setEvents(c *controller, v uint32) (uint32, nvme.Status) {
	allowed := c.supportedEvents()
	if !c.sub.discovery {
		allowed |= nvme.EventSMARTMask
	}
	if nvme.EventMask(v)&^allowed != 0 {
		return 0, invalidField
	}
	return 0, nvme.Success
}
