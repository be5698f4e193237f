package authn

import (
	"net/netip"

	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// Exchange has the exchanges of one queue, one after the other. It belongs to the reactor of the
// queue, but for its messages while Busy.
type Exchange struct {
	*auth.Controller
	Running bool // an exchange has begun and has not succeeded
	Proven  bool // the host has authenticated, and the queue serves it

	hosts *Hosts
	host  string
	from  netip.Addr
	job   *job // processes a message, nil if none does
}

type job struct {
	turns.Job
	failed bool // the exchange had failed before
}

// Result is a set of consequences of a message.
type Result uint8

// The results.
const (
	Succeeded Result = 1 << iota // the host has authenticated
	Failed                       // it has not, which it has yet to read
	Ended                        // it has not, and reads nothing more
)

// NewExchange makes the exchange of a queue that comes from an address, with c and the host of c.
func (h *Hosts) NewExchange(c *auth.Controller, hostNQN string, from netip.Addr) *Exchange {
	return &Exchange{Controller: c, hosts: h, host: hostNQN, from: from}
}

// Busy reports whether a message of the host is being processed. No other one may come.
func (x *Exchange) Busy() bool { return x.job != nil }

// Send has a message of the host processed, elsewhere. p is the policy of the host. hold(true) is
// called when that begins, by another goroutine. Afterwards hold(false) and, unless Close was
// called, done are called by post.
func (x *Exchange) Send(m []byte, p *auth.Policy, hold func(bool), post func(func()),
	done func(Result),
) {
	x.Running = true
	j := &job{failed: x.State() == auth.Failed}
	j.From(x.from)
	j.Known = x.hosts.IsKnown(x.from)
	j.Run = func() {
		hold(true)
		x.Sent(m, p)
	}
	j.Done = func() {
		post(func() {
			hold(false)
			if x.job != j {
				x.Wipe()
				return
			}
			x.job = nil
			r := x.result(j.failed)
			if x.State() == auth.Failed && x.Controller.Ended() {
				r |= Ended
			}
			done(r)
		})
	}
	x.job = j
	x.hosts.Submit(&j.Job)
}

// result counts the end of an exchange.
func (x *Exchange) result(failedBefore bool) Result {
	switch x.State() {
	case auth.Authenticated:
		x.Running = false
		x.hosts.Succeeded(x.host, x.from)
		return Succeeded
	case auth.Failed:
		if !failedBefore {
			x.hosts.Failed(x.host, x.from)
			return Failed
		}
	}
	return 0
}

// Message returns the next message to the host. The result is Failed if the host is to send one.
func (x *Exchange) Message() ([]byte, Result) {
	failed := x.State() == auth.Failed
	m := x.Controller.Message()
	if failed || x.State() != auth.Failed {
		return m, 0
	}
	return m, x.result(false)
}

// Read is called when the host has read Message.
func (x *Exchange) Read() Result {
	if x.Controller.Read(); x.State() == auth.Failed {
		return Ended
	}
	return x.result(true)
}

// Failure returns the reason of a failure, and a hint for the operator.
func (x *Exchange) Failure() (why auth.Reason, hint string) {
	why = x.Reason()
	switch {
	case x.Expired():
		hint = "the key of the host has expired: keys_until, or old_keys_until if it is an old one"
	case why == auth.HashNotUsable, why == auth.GroupNotUsable:
		hint = "dhchap_hash and dhchap_dhgroup of the host allow nothing that it offers"
	case why == auth.ConcatenationMismatch && x.MustConcatenate:
		hint = "security requires TLS: nvme connect with --concat, or --tls and a tls_key"
	case why == auth.ConcatenationMismatch:
		hint = "secure channel concatenation needs a listener with tls: allowed, the admin " +
			"queue, and no other key for TLS"
	case why == auth.IncorrectPayload, why == auth.IncorrectMessage,
		why == auth.ProtocolNotUsable:
		hint = "the host does not follow the specification"
	default:
		hint = "the keys of host and target differ, or a key of the controller is missing: " +
			"nvmf-target key check"
	}
	return why, hint
}

// TimedOut counts a host that has not finished an exchange in time. A failure was counted before,
// and for a message in process the target is late, not the host.
func (x *Exchange) TimedOut() {
	if x.job == nil && x.State() == auth.Unfinished {
		x.hosts.Failed(x.host, x.from)
	}
}

// Unfinished reports whether the queue ends before an exchange has, which was counted nowhere.
// required: the queue serves nothing else before.
func (x *Exchange) Unfinished(required bool) bool {
	if x.job != nil {
		return !x.job.failed
	}
	return x.State() == auth.Unfinished && (x.Running || required)
}

// Close wipes the secrets. It returns true if a message was in process, whose done is not called.
func (x *Exchange) Close() (busy bool) {
	j := x.job
	if x.job = nil; j == nil || x.hosts.Cancel(&j.Job) {
		x.Wipe()
	}
	return j != nil
}
