package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
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
