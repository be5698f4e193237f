//go:build cgo

package ibv

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// callError is a failed call of rdma-core, with its arguments and a hint.
type callError struct {
	call, what, hint string
	errno            unix.Errno
	noDevice         bool // it is verbs.ErrNoDevice
}

func (e *callError) Error() string {
	s := e.call
	if e.what != "" {
		s += " " + e.what
	}
	s += ": " + e.errno.Error()
	if e.noDevice {
		s += ": " + verbs.ErrNoDevice.Error()
	}
	if e.hint != "" {
		s += " (" + e.hint + ")"
	}
	return s
}

func (e *callError) Unwrap() []error {
	if e.noDevice {
		return []error{e.errno, verbs.ErrNoDevice}
	}
	return []error{e.errno}
}

// fail makes the error of a call that returned errno; nil if errno is 0.
func fail(call string, errno unix.Errno, format string, args ...any) error {
	if errno == 0 {
		return nil
	}
	return &callError{
		call: call, what: fmt.Sprintf(format, args...), errno: errno,
		hint: hint(call, errno),
	}
}

// failErr is fail for a call that cgo reported with err, its errno.
func failErr(call string, err error, format string, args ...any) error {
	errno, ok := err.(unix.Errno)
	if !ok || errno == 0 {
		errno = unix.EIO // it failed without setting errno
	}
	return fail(call, errno, format, args...)
}

// noDevice marks an error of fail as verbs.ErrNoDevice if its errno means that there is no device,
// or no device with such an address.
func noDevice(err error, errnos ...unix.Errno) error {
	if e, ok := err.(*callError); ok {
		for _, x := range errnos {
			if e.errno == x {
				e.noDevice = true
			}
		}
	}
	return err
}

// hint returns the fix for common errors.
func hint(call string, errno unix.Errno) string {
	switch {
	case call == "ibv_reg_mr" &&
		(errno == unix.ENOMEM || errno == unix.EAGAIN || errno == unix.EPERM):
		return "the limit on locked memory may be too low: LimitMEMLOCK=infinity in the service, " +
			"or ulimit -l unlimited"
	case call == "rdma_create_event_channel" && errno == unix.ENOENT:
		return "there is no /dev/infiniband/rdma_cm: load the module rdma_ucm"
	case call == "rdma_create_event_channel" && errno == unix.ENODEV, call == "ibv_get_device_list":
		return "load the driver of the adapter and the module ib_uverbs; without hardware, " +
			"rdma link add rxe0 type rxe netdev ..."
	case (call == "rdma_create_event_channel" || call == "ibv_open_device") &&
		(errno == unix.EACCES || errno == unix.EPERM):
		return "no permission on /dev/infiniband: run as root or in the group that owns its files"
	case (call == "rdma_create_qp" || call == "ibv_create_cq" || call == "ibv_create_srq") &&
		errno == unix.ENOMEM:
		return "the device has no more resources, or the limit on locked memory is too low: " +
			"ulimit -l"
	}
	return ""
}
