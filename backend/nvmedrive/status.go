package nvmedrive

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Failure implements disk.Driver. The error names the status.
func (d *driver) Failure(status int32) error {
	st := nvme.Status(status)
	return fmt.Errorf("%w: %w", class(st.Code()), st)
}

// class returns the kind of error of a status (Base section 4.2.3, NVM section 3.1). Any other
// status counts as a failure of the medium or the drive.
func class(st nvme.Status) error {
	switch st {
	case nvme.InvalidOpcode, nvme.InvalidField:
		return backend.ErrUnsupported
	case nvme.LBAOutOfRange:
		return backend.ErrOutOfRange
	case nvme.CapacityExceeded:
		return backend.ErrNoSpace
	case nvme.NamespaceWriteProtected, writeToReadOnlyRange:
		return backend.ErrReadOnly
	case nvme.AbortedPowerLoss, nvme.AbortRequested, nvme.AbortedSQDeletion,
		nvme.CommandInterrupted, nvme.TransientTransportError:
		return backend.ErrAborted
	case nvme.InvalidNamespaceOrFormat, nvme.NamespaceNotReady:
		return backend.ErrOffline
	}
	if st.SCT() == sctPath {
		return backend.ErrOffline
	}
	return backend.ErrIO
}

const (
	writeToReadOnlyRange nvme.Status = 0x182 // NVM section 3.1.2
	sctPath              uint8       = 3     // Base section 4.2.3.4
)
