package target

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Refusals that the same command would meet again.
const (
	invalidOpcode    = nvme.InvalidOpcode | nvme.DNR
	invalidField     = nvme.InvalidField | nvme.DNR
	invalidNamespace = nvme.InvalidNamespaceOrFormat | nvme.DNR
	invalidLength    = nvme.DataSGLLengthInvalid | nvme.DNR
	outOfRange       = nvme.LBAOutOfRange | nvme.DNR
	writeProtected   = nvme.NamespaceWriteProtected | nvme.DNR
	sequenceError    = nvme.CommandSequenceError | nvme.DNR
)

// notReady is the status of commands for storage that is away or does not answer. Hosts try again,
// on another path if they have one, until it is back (Base section 4.2.3.4, 00h), where Namespace
// Not Ready would make them fail after a few attempts.
const notReady = nvme.InternalPathError

// ioStatus is the NVMe status of a finished IO. It is the only place where backend errors become
// statuses. What another try or another path may cure carries no DNR.
func ioStatus(io *backend.IO) nvme.Status {
	err := io.Err
	switch {
	case err == nil:
		return nvme.Success
	case errors.Is(err, backend.ErrOffline):
		return notReady
	case errors.Is(err, backend.ErrAborted):
		return nvme.AbortRequested
	case errors.Is(err, backend.ErrIO):
		if io.Op == backend.OpRead {
			return nvme.UnrecoveredReadError // Base section 4.2.3.3, 81h
		}
		return nvme.WriteFault // Base section 4.2.3.3, 80h
	case errors.Is(err, backend.ErrNoSpace):
		return nvme.CapacityExceeded | nvme.DNR
	case errors.Is(err, backend.ErrReadOnly):
		return writeProtected
	case errors.Is(err, backend.ErrOutOfRange):
		return outOfRange
	case errors.Is(err, backend.ErrUnsupported):
		return invalidOpcode
	}
	return nvme.InternalError
}
