package target

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
)

// Refusals that a retry of the same command would meet again.
const (
	invalidOpcode       = nvme.InvalidOpcode | nvme.DNR
	invalidField        = nvme.InvalidField | nvme.DNR
	invalidNamespace    = nvme.InvalidNamespaceOrFormat | nvme.DNR
	invalidLength       = nvme.DataSGLLengthInvalid | nvme.DNR
	outOfRange          = nvme.LBAOutOfRange | nvme.DNR
	writeProtected      = nvme.NamespaceWriteProtected | nvme.DNR
	reservationConflict = nvme.ReservationConflict | nvme.DNR
	sequenceError       = nvme.CommandSequenceError | nvme.DNR
)

// inactiveNamespace is the status of commands with a valid NSID that names no namespace.
const inactiveNamespace = invalidField

const notReady = compound.NotReady

// failed counts and logs a failed IO and returns its status.
func (ch *channel) failed(io *backend.IO) nvme.Status {
	if io.Err == controllers.ErrHidden { // not by the device
		return inactiveNamespace
	}
	return ch.ns.Failed(&ch.Channel, io, ch.h.loop.Now())
}

// logError adds a failed command to the log of its controller, with the first failed block.
func (s *session) logError(sqe *nvme.SQE, st nvme.Status, lba uint64) {
	fabrics := sqe.Opcode() == nvme.FabricsOpcode
	s.ctrl.Errors.Add(sqe, st, admin.Failure{
		SQID: s.qid, Transport: s.info.Transport, LBA: lba,
		BadFlags: fabrics && badFabricsFlags(sqe) ||
			!fabrics && sqe.Flags()&flagsMask != psdtSGL<<6,
		NoNamespace: !fabrics && s.qid != 0 && s.ctrl.Namespace(sqe.NSID()) == nil,
	})
}

// failedLBA is the first block that a command failed with, as far as is known: the one that err
// names, or the command's first; 0 if the command has no SLBA.
func (c *cmd) failedLBA(err error) uint64 {
	if c.s.table == nil || c.s.table[c.req.SQE.Opcode()].flags&opBlocks == 0 {
		return 0
	}
	if err != nil && c.ch != nil { // refused commands allocate nothing
		if at, ok := errors.AsType[*backend.Fault](err); ok {
			return uint64(at.Off) >> c.ch.ns.Geometry().Shift
		}
	}
	return c.req.SQE.SLBA()
}
