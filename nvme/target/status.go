package target

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
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
	if nsid == 0 || nsid > MaxNSID {
		return invalidNamespace
	}
	return inactiveNamespace
}

const notReady = compound.NotReady

// ioErrors is the only place where errors of devices become statuses, and reasons, by which they
// are counted. The first error that matches decides. A status that a retry or another path may
// cure has no DNR.
var ioErrors = [dispatch.ErrorKinds]struct {
	err    error
	reason string
	status nvme.Status
}{
	{backend.ErrOffline, "offline", notReady},
	{backend.ErrAborted, "aborted", nvme.AbortRequested},
	{backend.ErrIO, "io", nvme.WriteFault}, // Base section 4.2.3.3, 80h
	{backend.ErrNoSpace, "no_space", nvme.CapacityExceeded | nvme.DNR},
	{backend.ErrReadOnly, "read_only", writeProtected},
	{backend.ErrOutOfRange, "out_of_range", outOfRange},
	{backend.ErrUnsupported, "unsupported", invalidOpcode},
	{nil, "other", nvme.InternalError},
}

// errorIO is the index of media errors in ioErrors.
const errorIO = 2

// ioStatus returns the status of a failed IO and the index of its error in ioErrors.
func ioStatus(io *backend.IO) (nvme.Status, int) {
	i := 0
	for i < len(ioErrors)-1 && !errors.Is(io.Err, ioErrors[i].err) {
		i++
	}
	if i == errorIO && io.Op == backend.OpRead {
		return nvme.UnrecoveredReadError, i // Base section 4.2.3.3, 81h
	}
	return ioErrors[i].status, i
}

// failureLogInterval is the time between log lines about failed IOs of one namespace and reason.
const failureLogInterval = int64(60e9)

// failed counts and logs a failed IO and returns its status.
func (ch *channel) failed(io *backend.IO) nvme.Status {
	switch io.Err { // not by the device
	case errHidden:
		return inactiveNamespace
	case dispatch.ErrPreempted:
		return nvme.AbortedPreempt // no DNR: a retry is checked against the present reservation
	}
	if errors.Is(io.Err, marks.ErrMarked) { // no error of the medium: it is not counted
		return nvme.UnrecoveredReadError | nvme.DNR
	}
	st, reason := ioStatus(io)
	ch.CountError(reason)
	if errors.Is(io.Err, backend.ErrDegraded) {
		ch.ns.degrade(ch.h.t.log, io.Err)
	}
	switch st {
	case notReady, nvme.AbortRequested: // hosts retry
		return st
	}
	last, now := &ch.ns.failureLogged[reason], ch.h.loop.Now()
	if t := last.Load(); (t == 0 || now-t >= failureLogInterval) && last.CompareAndSwap(t, now) {
		ch.h.t.log.Warn("I/O failed; for a minute, more failures of this kind are only counted",
			"subsystem", ch.ns.sub.nqn, "nsid", ch.ns.nsid, "device", ch.ns.identity(),
			"command", io.Op.String(), "status", st.String(), "err", io.Err)
	}
	return st
}
