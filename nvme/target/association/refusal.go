// Package association has the checks of Connect commands, with which a host makes its association
// with a controller, and the refusals: their statuses, and the reasons and remedies for the log.
//
// It imports the wire formats, the description of a queue in package fabric, and the limits of
// package admin. Its functions use only their arguments. Any goroutine may call them.
package association

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Statuses of Connect. DNR makes Linux give up reconnecting, so it is set only where no later
// attempt can succeed: a malformed command, a host not allowed, a subsystem removed on purpose. An
// unknown subsystem may come back, and a controller may have expired.
const (
	malformedStatus = nvme.ConnectInvalidParameters | nvme.DNR
	refusedStatus   = nvme.ConnectInvalidParameters
)

// Refusal is the refusal of a Connect; its zero value is none.
type Refusal struct {
	Status nvme.Status
	Field  nvme.InvalidParameter
	// Expected is the required value of the field, Received the value that it has. Both are for the
	// log, and nil if no value would do.
	Expected, Received any
	// Hint is the remedy; "": see Record.
	Hint string
	// Final: with DNR, unless subsystems or hosts change meanwhile.
	Final bool
	// Elsewhere: an I/O queue does not come from the address of its admin queue.
	Elsewhere bool
}

// Why a host may have no controller.
var (
	ErrNotAllowed = errors.New("the host is not, or no longer, allowed to use the subsystem")
	ErrNotServed  = errors.New("the listener does not, or no longer, serve the subsystem")
	ErrElsewhere  = errors.New("the address of the host is in none of its networks")
	ErrNoKey      = errors.New("security requires that the host authenticates, and it has no " +
		"key, or has connected without it")
	ErrNoTLS = errors.New("security requires TLS, and the connection has none")
)

// Busy refuses a Connect for now.
var Busy = Refusal{Status: nvme.ConnectControllerBusy}

// malformed refuses a Connect because of a field of the command.
func malformed(offset uint16, expected, received any) Refusal {
	return Refusal{
		Status: malformedStatus, Field: nvme.InvalidInCommand(offset), Expected: expected,
		Received: received,
	}
}

// badData refuses a Connect because of a field of its data.
func badData(st nvme.Status, offset uint16, expected, received any) Refusal {
	return Refusal{
		Status: st, Field: nvme.InvalidInData(offset), Expected: expected, Received: received,
	}
}

// badSubsystem refuses a Connect to a subsystem that another attempt may find.
func badSubsystem(expected, received any, hint string) Refusal {
	r := badData(refusedStatus, nvme.ConnectDataOffsetSUBNQN, expected, received)
	r.Hint = hint
	return r
}

// badHost refuses a Connect because of the identity of the host.
func badHost(offset uint16, expected, received any, hint string) Refusal {
	r := badData(nvme.ConnectInvalidHost, offset, expected, received)
	r.Hint = hint
	return r
}

// Unread refuses a command that the transport or Prepare has refused with a status, before its data
// was read. length is that of the data, and badFlags reports whether byte 1 is the reason.
func Unread(sqe *nvme.SQE, st nvme.Status, length uint32, badFlags bool) Refusal {
	r := Refusal{Status: st}
	switch st.Code() {
	case nvme.InvalidField: // with which Connect must not fail (Base section 6.3)
		if badFlags {
			return malformed(nvme.ConnectOffsetFlags, "an SGL, not fused",
				fmt.Sprintf("%#02x", sqe.Flags()))
		}
		return malformed(nvme.ConnectOffsetSGL1, "data of the host", "other data")
	case nvme.ConnectIncompatibleFormat:
		r.Expected, r.Received = 0, sqe.Connect().RECFMT()
	case nvme.CommandSequenceError:
		r.Expected, r.Received = "one Connect", "another"
	case nvme.DataSGLLengthInvalid:
		r.Expected, r.Received = nvme.ConnectDataSize, length
	}
	return r
}

// TooDeep refuses a queue of more than most entries.
func TooDeep(sqe *nvme.ConnectSQE, most int) Refusal {
	return malformed(nvme.ConnectOffsetSQSIZE, fmt.Sprintf("%d to %d entries", 2, most),
		int(sqe.SQSIZE())+1)
}

// NoQueue refuses an I/O queue that the controller does not take.
func NoQueue(expected, received any) Refusal {
	return Refusal{
		Status: refusedStatus, Field: nvme.InvalidInCommand(nvme.ConnectOffsetQID),
		Expected: expected, Received: received,
	}
}

// Unknown refuses a Connect to a subsystem that does not exist; removed: on purpose.
func Unknown(subNQN string, removed bool) Refusal {
	r := badSubsystem("a subsystem of the target", subNQN, "")
	if removed {
		r.Final, r.Hint = true, "the subsystem was removed; hosts end their controllers"
	}
	return r
}

// PSKEnded refuses a queue, because the generated PSK of its connection has ended.
func PSKEnded(subNQN string) Refusal {
	return badSubsystem("a PSK that counts", subNQN, "the PSK that the host has generated has "+
		"ended, or the key with which it was; the host has to make another one")
}

// NotPermitted refuses a host for one of the errors of this package, at an address. Through a
// listener that does not serve it, a subsystem does not exist. The refusal of a subsystem that
// requires security is for the host always that of an unknown name; only the log has the reason. It
// has no DNR, so that hosts try again, and get in once they meet the requirements.
func NotPermitted(why error, subNQN, hostNQN string, from netip.Addr, requires string) (r Refusal) {
	switch {
	case errors.Is(why, ErrNotServed):
		r = badSubsystem("a subsystem of the listener", subNQN,
			"listeners of the subsystem does not name this listener")
	case errors.Is(why, ErrElsewhere): // it may come from another address later
		r = badHost(nvme.ConnectDataOffsetHOSTNQN, "an address in the networks of the host", from,
			"networks of the host does not have this address; somebody else may use its NQN")
	case errors.Is(why, ErrNoKey), errors.Is(why, ErrNoTLS):
		r = Refusal{
			Expected: requires, Received: why,
			Hint: "give the host a dhchap_key, or a tls_key for TLS, in the configuration, or it " +
				"is somebody else",
		}
	default:
		r = badHost(nvme.ConnectDataOffsetHOSTNQN, "a host of the subsystem",
			cmp.Or(hostNQN, "no name"),
			"add the host to hosts of the subsystem, or set allow_any_host")
		r.Final = true
	}
	if requires != "" || r.Status.OK() { // the requirements may have ended since
		r.Status, r.Field = refusedStatus, nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN)
		r.Final = false
	}
	return r
}

// Duplicate refuses a controller of a host that is connected as another one.
func Duplicate(c, other *Controller) Refusal {
	name := func(c *Controller) string { return fmt.Sprintf("%s, %x", c.HostNQN, c.HostID) }
	return badHost(nvme.ConnectDataOffsetHostID,
		fmt.Sprintf("%s, as from %v", name(other), other.Admin.Remote.Addr()), name(c),
		"give each machine its own /etc/nvme/hostnqn and hostid; or duplicate_hosts: allow")
}

// Record returns the reason and a remedy for the log. data is nil if it was not received.
func (r *Refusal) Record(sqe *nvme.ConnectSQE, data *nvme.ConnectData) []any {
	args := []any{
		"qid", sqe.QID(), "depth", int(sqe.SQSIZE()) + 1, "status", r.Status.String(), "field",
		r.Field.String(),
	}
	if data != nil {
		args = append(args, "subsystem", loggedNQN(&data.SUBNQN), "host", loggedNQN(&data.HOSTNQN))
	}
	if r.Expected != nil {
		args = append(args, "expected", r.Expected, "received", r.Received)
	}
	return append(args, "hint", r.remedy(sqe))
}

func (r *Refusal) remedy(sqe *nvme.ConnectSQE) string {
	switch {
	case r.Hint != "":
		return r.Hint
	case r.Status.Code() == nvme.ConnectControllerBusy:
		return "see the line before; if there is none, all controller IDs are taken"
	case r.Field == nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN) && sqe.QID() > 0:
		return "the controller is one of another subsystem, or this one was removed"
	case r.Field == nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN):
		return "no subsystem of the configuration has this NQN"
	case r.Field == nvme.InvalidInCommand(nvme.ConnectOffsetKATO):
		return "a keep alive timeout is a day at most"
	case r.Field == nvme.InvalidInData(nvme.ConnectDataOffsetCNTLID):
		return "the controller has ended, or has another host or address; hosts connect a new one"
	case r.Field == nvme.InvalidInCommand(nvme.ConnectOffsetSQSIZE) && sqe.SQSIZE() > 0:
		return "queue_depth is the limit; nvme connect --queue-size asks for less"
	}
	return "the host does not follow the specification"
}

// loggedNQN is a peer's NQN for the log, no longer than an NQN may be; log/slog escapes it.
func loggedNQN(field *[nvme.NQNFieldSize]byte) string {
	nqn, err := nvme.ParseNQN(field)
	if err != nil && field[0] != 0 {
		return "(malformed)"
	}
	return nqn
}
