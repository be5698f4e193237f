package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
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

// noNamespace is the status of a command that needs a namespace and has this NSID, which names none
// (Base section 3.2.1.5).
func noNamespace(nsid uint32) nvme.Status {
	if nsid == 0 || nsid > namespaces.MaxNSID {
		return invalidNamespace
	}
	return inactiveNamespace
}

const notReady = compound.NotReady

// failed counts and logs a failed IO and returns its status.
func (ch *channel) failed(io *backend.IO) nvme.Status {
	if io.Err == errHidden { // not by the device
		return inactiveNamespace
	}
	return ch.ns.Failed(&ch.Channel, io, ch.h.loop.Now())
}
