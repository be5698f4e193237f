package target

import "github.com/nvmf-target/nvmf-target/nvme"

// readyTimeout is CAP.TO and CRTO.CRWMT in units of 500 ms: a reset waits for the devices.
const readyTimeout = 40

// prepareProperty validates offset, size and, for Property Set, that the property can be written.
func prepareProperty(cm *cmd) nvme.Status {
	p := cm.req.SQE.Property()
	switch off := p.Offset(); off {
	case nvme.PropertyCAP, nvme.PropertyVS, nvme.PropertyCSTS, nvme.PropertyCRTO:
		if cm.req.SQE.FabricsType() == nvme.FabricsPropertySet {
			return invalidField // read-only
		}
		fallthrough
	case nvme.PropertyCC:
		if p.Size() != off.Size() {
			return invalidField
		}
	default:
		return invalidField
	}
	return cm.expect(0)
}

// propertyGet answers a Property Get (Base section 6.5).
func propertyGet(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	var v uint64
	switch cm.req.SQE.Property().Offset() {
	case nvme.PropertyCAP:
		v = uint64(nvme.MakeCAP(c.entries(), readyTimeout, c.commandSets()|nvme.CAPCRMSMedia))
	case nvme.PropertyVS:
		v = uint64(version)
	case nvme.PropertyCC:
		v = uint64(c.cc)
	case nvme.PropertyCSTS:
		v = uint64(c.csts)
	case nvme.PropertyCRTO:
		v = uint64(nvme.MakeCRTO(readyTimeout, 0))
	}
	h.finish(cm, v, nvme.Success)
}

// propertySet carries out a Property Set of CC (Base section 6.6).
func propertySet(h *Handler, cm *cmd) {
	h.finish(cm, 0, cm.s.ctrl.configure(nvme.CC(cm.req.SQE.Property().Value())))
}
