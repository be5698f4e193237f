package target

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// logError adds a failed command to the log of its controller, with the first block that it failed
// with.
func (s *session) logError(sqe *nvme.SQE, st nvme.Status, lba uint64) {
	e := nvme.ErrorLogEntry{
		SQID: s.qid, CID: sqe.CID(), Status: uint16(st|nvme.More) << 1, TRTYPE: s.info.Transport,
		Location: s.location(sqe, st), Opcode: sqe.Opcode(), Version: 1, LBA: lba,
	}
	if sqe.Opcode() != nvme.FabricsOpcode {
		e.NSID = sqe.NSID()
	}
	s.ctrl.errors.Add(e)
}

// failedLBA is the first block that a command failed with, as far as is known: the one that err
// names, or the command's first; 0 if the command has no SLBA.
func (c *cmd) failedLBA(err error) uint64 {
	if c.s.table == nil || c.s.table[c.req.SQE.Opcode()].flags&opBlocks == 0 {
		return 0
	}
	if err != nil && c.ch != nil { // refused commands allocate nothing
		var at *backend.Fault
		if errors.As(err, &at) {
			return uint64(at.Off) >> c.ch.ns.geo.Load().shift
		}
	}
	return c.req.SQE.SLBA()
}

// location is the byte of the command that the status is about, as far as the status alone tells.
func (s *session) location(sqe *nvme.SQE, st nvme.Status) uint16 {
	fabrics := sqe.Opcode() == nvme.FabricsOpcode
	switch st.Code() {
	case nvme.InvalidOpcode:
		if fabrics {
			return nvme.LocationFabricsType
		}
		return nvme.LocationOpcode
	case nvme.InvalidField:
		if fabrics && badFabricsFlags(sqe) || !fabrics && sqe.Flags()&flagsMask != psdtSGL<<6 {
			return nvme.LocationFlags
		}
		if !fabrics && s.qid != 0 && s.ctrl.namespace(sqe.NSID()) == nil {
			return nvme.LocationNSID
		}
	case nvme.InvalidNamespaceOrFormat, nvme.NamespaceWriteProtected:
		return nvme.LocationNSID
	case nvme.DataSGLLengthInvalid:
		return nvme.LocationSGLLength
	case nvme.SGLTypeInvalid:
		return nvme.LocationSGLType
	case nvme.LBAOutOfRange, nvme.InvalidLogPage, nvme.FeatureNotChangeable:
		return nvme.LocationCDW10
	case nvme.FeatureNotSaveable:
		return nvme.LocationSave
	}
	return nvme.LocationNone
}
