package admin

import "github.com/nvmf-target/nvmf-target/nvme"

const (
	// Version is the version of the specification that controllers comply with (VS and VER). 2.0
	// asks for CNS 07h and 08h, logs 00h, 05h and 12h, and CRTO.
	Version = nvme.Version20
	// readyTimeout is CAP.TO and CRTO.CRWMT in units of 500 ms: a reset waits for the devices.
	readyTimeout = 40
)

// Registers has the properties of a controller (Base section 3.1.4), and the changes that wait for
// the end of its I/O queues.
type Registers struct {
	Discovery bool // the controller is a discovery controller
	CC        nvme.CC
	CSTS      nvme.CSTS

	resets, shutsDown bool // a reset or a shutdown waits for the end of its I/O queues
}

// Change is a set of consequences of a write of CC.
type Change uint8

// The changes.
const (
	Enabled  Change = 1 << iota // CSTS.RDY is set
	Reset                       // RDY becomes 0 when the I/O queues have ended
	Shutdown                    // CSTS.SHST becomes 10b then
)

// CheckProperty checks offset and size of a property, and that Property Set can write it.
func CheckProperty(sqe *nvme.SQE) nvme.Status {
	p := sqe.Property()
	off := p.Offset()
	writable := false
	switch off {
	case nvme.PropertyCAP, nvme.PropertyVS, nvme.PropertyCSTS, nvme.PropertyCRTO:
	case nvme.PropertyCC:
		writable = true
	default:
		return nvme.InvalidField | nvme.DNR
	}
	if p.Size() != off.Size() || !writable && sqe.FabricsType() == nvme.FabricsPropertySet {
		return nvme.InvalidField | nvme.DNR
	}
	return nvme.Success
}

// Get returns a property (Base section 6.5). entries is the size of queues. I/O controllers have
// one I/O command set, NVM. A discovery controller has its bit and no other, although it has no I/O
// commands (Base section 3.1.4.1).
func (r *Registers) Get(off nvme.PropertyOffset, entries int) uint64 {
	switch off {
	case nvme.PropertyCAP:
		flags := nvme.CAPCRMSMedia | nvme.CAPCSSNVM
		if !r.Discovery {
			flags |= nvme.CAPCSSIOSets
		}
		return uint64(nvme.MakeCAP(entries, readyTimeout, flags))
	case nvme.PropertyVS:
		return uint64(Version)
	case nvme.PropertyCC:
		return uint64(r.CC)
	case nvme.PropertyCSTS:
		return uint64(r.CSTS)
	}
	return uint64(nvme.MakeCRTO(readyTimeout, 0))
}

// Write carries out a write of CC (Base section 3.1.4.5), or refuses it and changes nothing.
func (r *Registers) Write(v nvme.CC) (c Change, st nvme.Status) {
	old := r.CC
	switch {
	case v.Reserved() != 0 || v.SHN() == 3 || v.CRIME():
		return 0, nvme.InvalidField | nvme.DNR
	case !v.EN() || old.EN():
	case r.resets || r.shutsDown:
		return 0, nvme.CommandSequenceError | nvme.DNR
	// Only now do these fields matter (Base section 3.1.4.5): a host may write them step by step.
	case !r.selectable(v.CSS()) || v.MPS() != 0 || v.AMS() != 0:
		return 0, nvme.InvalidField | nvme.DNR
	case !r.Discovery && (v.IOSQES() != 6 || v.IOCQES() != 4):
		// entries of 64 and 16 bytes; discovery controllers have no I/O queues
		return 0, nvme.InvalidField | nvme.DNR
	}
	const shutdown = nvme.CSTSShutdownOccurring | nvme.CSTSShutdownComplete
	r.CC = v
	switch {
	case v.EN() && !old.EN():
		r.CSTS = r.CSTS&^shutdown | nvme.CSTSReady
		c |= Enabled
	case !v.EN() && old.EN():
		r.CSTS &^= shutdown
		r.resets, r.shutsDown = true, false
		c |= Reset
	}
	if v.SHN() != 0 && old.SHN() == 0 && r.CSTS.SHST() == 0 {
		r.CSTS |= nvme.CSTSShutdownOccurring
		r.shutsDown = true
		c |= Shutdown // once: after it only a reset clears SHST (Base section 3.6.2)
	}
	return c, nvme.Success
}

// selectable reports whether CC.CSS may have this value.
func (r *Registers) selectable(css uint8) bool {
	return css == nvme.CSSNVM || css == nvme.CSSAllIO && !r.Discovery
}

// QueuesEnded is called when no I/O queue is left. It reports whether a shutdown is complete.
func (r *Registers) QueuesEnded() (shutdown bool) {
	if r.resets {
		r.CSTS &^= nvme.CSTSReady
	}
	if shutdown = r.shutsDown; shutdown {
		r.CSTS = r.CSTS&^nvme.CSTSShutdownOccurring | nvme.CSTSShutdownComplete
	}
	r.resets, r.shutsDown = false, false
	return shutdown
}
