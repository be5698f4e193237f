package nvme

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	wire "github.com/nvmf-target/nvmf-target/nvme"
)

// Failure implements disk.Driver: what the status of a command means. The error names the status.
func (d *driver) Failure(status int32) error {
	st := wire.Status(status)
	return fmt.Errorf("%w: %w", class(st.Code()), st)
}

// class is the kind of error that a status is (Base section 4.2.3, NVM section 3.1). What no case names is the medium's or the drive's
// failure: nobody is told that data is there when it is not.
func class(st wire.Status) error {
	switch st {
	case wire.InvalidOpcode, wire.InvalidField:
		return backend.ErrUnsupported
	case wire.LBAOutOfRange:
		return backend.ErrOutOfRange
	case wire.CapacityExceeded:
		return backend.ErrNoSpace
	case wire.NamespaceWriteProtected, writeToReadOnlyRange:
		return backend.ErrReadOnly
	case wire.AbortedPowerLoss, wire.AbortRequested, wire.AbortedSQDeletion, wire.CommandInterrupted, wire.TransientTransportError:
		return backend.ErrAborted
	case wire.InvalidNamespaceOrFormat, wire.NamespaceNotReady:
		return backend.ErrGone
	}
	if st.SCT() == sctPath {
		return backend.ErrGone
	}
	return backend.ErrIO
}

const (
	writeToReadOnlyRange wire.Status = 0x182 // NVM section 3.1.2
	sctPath              uint8       = 3     // Base section 4.2.3.4
)
