package auth

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"slices"
)

// Host is the host's side of one exchange. The caller sends Negotiate, then the result of
// Challenged for the message it has read, then the result of Succeeded, if that is not nil.
type Host struct {
	// HostNQN and SubNQN are the names in the Connect command.
	HostNQN, SubNQN string
	// Key is the key of the host. With ControllerKey the controller proves itself, too.
	Key, ControllerKey *Key
	// Hashes and Groups are offered; empty means all.
	Hashes []Hash
	Groups []Group
	// Concatenation is the requested concatenation. Succeeded leaves its PSK in Generated.
	Concatenation Concatenation
	Generated     *TLSPSK

	x     exchange
	value []byte // C2
	seq   uint32 // S2, 0 without a key of the controller
}

// Negotiate begins the exchange. tid is its transaction identifier.
func (h *Host) Negotiate(tid uint16) []byte {
	h.x = exchange{
		hostNQN: h.HostNQN, subNQN: h.SubNQN, tid: tid, concatenation: h.Concatenation,
	}
	m := negotiate{tid: tid, concatenation: h.Concatenation}
	m.hashes, m.groups = h.offer()
	return m.bytes()
}

// offer returns the algorithms that the controller may choose from.
func (h *Host) offer() (hashes []Hash, groups []Group) {
	hashes, groups = h.Hashes, h.Groups
	if len(hashes) == 0 {
		hashes = AllHashes
	}
	if len(groups) == 0 {
		groups = AllGroups
	}
	return hashes, groups
}

// expect checks the header of a message of the controller.
func (h *Host) expect(b []byte, want kind) error {
	k, tid, ok := header(b)
	switch {
	case !ok:
		return IncorrectPayload
	case k == kindFailure1:
		return Refused{parseFailure(b)}
	case k != want || tid != h.x.tid:
		return IncorrectMessage
	}
	return nil
}

// Challenged answers a challenge. With an error it returns the message for the controller, or nil.
func (h *Host) Challenged(b []byte) (send []byte, err error) {
	if err := h.expect(b, kindChallenge); err != nil {
		return h.refuse(err)
	}
	m, r := parseChallenge(b)
	hashes, groups := h.offer()
	switch {
	case r != 0:
	case !slices.Contains(hashes, m.hash):
		r = HashNotUsable
	case !slices.Contains(groups, m.group):
		r = GroupNotUsable
	case h.Concatenation != NoConcatenation && (m.group == GroupNull || m.hash == SHA512):
		r = ConcatenationMismatch
	}
	if r != 0 {
		return h.refuse(r)
	}
	h.x.hash, h.x.group = m.hash, m.group
	out := reply{tid: h.x.tid}
	if m.group != GroupNull {
		h.x.exponent = m.group.newExponent()
		out.public = m.group.public(h.x.exponent)
	}
	if err := h.x.agree(m.public); err != nil {
		return h.refuse(fmt.Errorf("%w: %w", IncorrectPayload, err))
	}
	out.response = h.x.hostResponse(h.Key, m.value, m.seq)
	if h.ControllerKey != nil {
		h.seq = nextSequence()
	}
	if h.ControllerKey != nil || h.Concatenation != NoConcatenation {
		h.value = h.x.newChallenge()
		out.value, out.seq = h.value, h.seq
	}
	if h.Concatenation != NoConcatenation {
		h.Generated = h.x.generate(m.value, h.value)
	}
	return out.bytes(), nil
}

// Succeeded checks the answer of the controller, and ends the exchange. It returns the message to
// send, or nil; also with an error.
func (h *Host) Succeeded(b []byte) (send []byte, err error) {
	defer h.x.wipe()
	if err := h.expect(b, kindSuccess1); err != nil {
		return h.refuse(err)
	}
	if h.x.hash == 0 {
		return h.refuse(IncorrectMessage) // no challenge came before
	}
	response, r := parseSuccess1(b, h.x.hash)
	if r != 0 {
		return h.refuse(r)
	}
	if h.ControllerKey == nil {
		return nil, nil
	}
	want := h.x.controllerResponse(h.ControllerKey, h.value, h.seq)
	if !hmac.Equal(want, response) {
		return h.refuse(fmt.Errorf("the controller has not proven its identity: %w",
			AuthenticationFailed))
	}
	return success2(h.x.tid), nil
}

// Refused is the error for an AUTH_Failure1 of the controller.
type Refused struct{ Reason }

// Error names the reason.
func (r Refused) Error() string { return "the controller refuses: " + r.Reason.Error() }

// refuse ends the exchange with AUTH_Failure2, unless the controller has refused.
func (h *Host) refuse(err error) ([]byte, error) {
	h.x.wipe()
	if _, ok := errors.AsType[Refused](err); ok {
		return nil, err
	}
	r, _ := errors.AsType[Reason](err)
	return failure(kindFailure2, h.x.tid, r), err
}
