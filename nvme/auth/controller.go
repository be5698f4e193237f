package auth

import (
	"crypto/hmac"
	"slices"
	"time"
)

// Policy is a controller's requirements for a host. It is immutable.
type Policy struct {
	// Keys are the keys of the host, several while one is being replaced. Any is a proof.
	Keys []*Key
	// OldUntil is the time when all but the first of Keys expire, and Until the time when all do;
	// zero means never.
	OldUntil, Until time.Time
	// Reauthenticate is the time that an authentication is valid for; 0 means forever.
	Reauthenticate time.Duration
	// ControllerKey proves the identity of the controller to the host; nil if it cannot.
	ControllerKey *Key
	// Hashes and Groups are allowed, in order of preference; empty means AllHashes and
	// DefaultGroups.
	Hashes []Hash
	Groups []Group
}

// Counting returns the Keys that are valid at a given time.
func (p *Policy) Counting(now time.Time) []*Key {
	passed := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	switch {
	case len(p.Keys) == 0 || passed(p.Until):
		return nil
	case passed(p.OldUntil):
		return p.Keys[:1]
	}
	return p.Keys
}

// choose selects the hash and the group, or returns the reason why there is none.
func (p *Policy) choose(m *negotiate) (h Hash, g Group, r Reason) {
	hashes, groups := p.Hashes, p.Groups
	if len(hashes) == 0 {
		hashes = AllHashes
	}
	if len(groups) == 0 {
		groups = DefaultGroups
	}
	secure := m.concatenation != NoConcatenation
	i := slices.IndexFunc(hashes, func(h Hash) bool {
		return slices.Contains(m.hashes, h) && !(secure && h == SHA512)
	})
	j := slices.IndexFunc(groups, func(g Group) bool {
		return slices.Contains(m.groups, g) && !(secure && g == GroupNull)
	})
	switch {
	case i < 0:
		return 0, 0, HashNotUsable
	case j < 0:
		return 0, 0, GroupNotUsable
	}
	return hashes[i], groups[j], 0
}

// State is the state of the last exchange.
type State uint8

// The states.
const (
	Unfinished State = iota
	Authenticated
	Failed // AUTH_Failure1 waits to be read, or was read, or the host has sent AUTH_Failure2
)

// step is the next message that a controller waits for.
type step uint8

const (
	awaitNegotiate step = iota
	challengeToRead
	awaitReply
	success1ToRead
	awaitSuccess2
	failure1ToRead
	ended // after a failure: no message follows
)

// Controller is the controller's side on one queue. It runs exchanges one after the other, until
// one fails. Message and Read serve Authentication Receive commands of the host.
type Controller struct {
	// MustConcatenate makes exchanges without concatenation fail. It is set before the first one.
	MustConcatenate bool

	x       exchange
	policy  *Policy
	step    step
	state   State
	reason  Reason
	message []byte
	value   []byte // C1
	seq     uint32 // S1
	answers bool   // Success1 has a response, which the host has to confirm
	offers  Concatenation
	key     *Key    // proven by the host
	expired bool    // key has expired
	psk     *TLSPSK // generated, until TakePSK
}

// NewController makes the controller's side for a host and a subsystem. offers is the concatenation
// that the queue supports. The host may ask for it.
func NewController(hostNQN, subNQN string, offers Concatenation) *Controller {
	return &Controller{x: exchange{hostNQN: hostNQN, subNQN: subNQN}, offers: offers}
}

// TakePSK returns the PSK that an exchange has generated, or nil, and the key of the host that was
// used. The PSK then belongs to the caller. It exists once the host has been told that it has
// authenticated.
func (c *Controller) TakePSK() (*TLSPSK, *Key) {
	if c.state != Authenticated {
		return nil, nil
	}
	p := c.psk
	c.psk = nil
	return p, c.key
}

// State is the state of the exchange; Unfinished before the first one.
func (c *Controller) State() State { return c.state }

// Ended reports whether the host has sent AUTH_Failure2, or has read AUTH_Failure1.
func (c *Controller) Ended() bool { return c.step == ended }

// Reason is the reason why the exchange has failed.
func (c *Controller) Reason() Reason { return c.reason }

// Expired reports whether the exchange failed by an expired key. The host is not told.
func (c *Controller) Expired() bool { return c.expired }

// Algorithms are the hash and the group of the exchange. bidirectional reports whether the
// controller has authenticated itself.
func (c *Controller) Algorithms() (h Hash, g Group, bidirectional bool) {
	return c.x.hash, c.x.group, c.answers
}

// Sent processes a message of the host, which then belongs to the controller. p applies from the
// beginning of an exchange to its end; nil means that the host has no key. Sent takes milliseconds
// of computation.
func (c *Controller) Sent(m []byte, p *Policy) {
	k, tid, ok := header(m)
	switch {
	case !ok:
		c.fail(IncorrectPayload)
	case k == kindNegotiate && c.step == awaitNegotiate:
		c.x.tid, c.state, c.expired = tid, Unfinished, false
		c.negotiate(m, p)
	case c.step != awaitReply && c.step != awaitSuccess2:
		c.fail(IncorrectMessage)
	case k == kindFailure2:
		c.end(Failed, parseFailure(m))
		c.step = ended
	case k == kindReply && c.step == awaitReply, k == kindSuccess2 && c.step == awaitSuccess2:
		switch {
		case tid != c.x.tid:
			c.fail(IncorrectPayload)
		case k == kindReply:
			c.reply(m)
		case len(m) != headerSize:
			c.fail(IncorrectPayload)
		default:
			c.end(Authenticated, 0)
		}
	default:
		c.fail(IncorrectMessage)
	}
}

// Message returns the next message for the host to read.
func (c *Controller) Message() []byte {
	switch c.step {
	case challengeToRead, success1ToRead, failure1ToRead:
	default:
		c.fail(IncorrectMessage) // there is nothing to read
	}
	if c.message == nil { // the host has sent AUTH_Failure2
		return failure(kindFailure1, c.x.tid, IncorrectMessage)
	}
	return c.message
}

// Wipe clears the secrets of an exchange that will not be finished.
func (c *Controller) Wipe() {
	c.x.wipe()
	c.wipePSK()
}

func (c *Controller) wipePSK() {
	if c.psk != nil {
		clear(c.psk.Secret)
		c.psk = nil
	}
}

// Read is called when the host has read Message.
func (c *Controller) Read() {
	switch c.step {
	case challengeToRead:
		c.step = awaitReply
	case success1ToRead:
		c.step = awaitSuccess2
		if !c.answers {
			c.end(Authenticated, 0)
		}
	case failure1ToRead:
		c.step = ended
	}
}

// negotiate chooses the algorithms and makes the challenge.
func (c *Controller) negotiate(b []byte, p *Policy) {
	m, r := parseNegotiate(b)
	if r == 0 && m.concatenation != c.offers &&
		(m.concatenation != NoConcatenation || c.MustConcatenate) {
		r = ConcatenationMismatch
	}
	if r == 0 && (p == nil || len(p.Keys) == 0) {
		r = AuthenticationFailed
	}
	if r == 0 {
		c.x.hash, c.x.group, r = p.choose(&m)
	}
	if r != 0 {
		c.fail(r)
		return
	}
	c.x.concatenation = m.concatenation
	c.policy, c.value, c.seq = p, c.x.newChallenge(), nextSequence()
	out := challenge{
		tid: c.x.tid, hash: c.x.hash, group: c.x.group, seq: c.seq, value: c.value,
	}
	if c.x.group != GroupNull {
		c.x.exponent = c.x.group.newExponent()
		out.public = c.x.group.public(c.x.exponent)
	}
	c.step, c.message = challengeToRead, out.bytes()
}

// reply checks the response of the host, and answers its challenge.
func (c *Controller) reply(b []byte) {
	m, r := parseReply(b, c.x.hash, c.x.group)
	switch {
	case r != 0:
		c.fail(r)
		return
	case c.x.agree(m.public) != nil:
		c.fail(IncorrectPayload)
		return
	}
	proven := false
	counting := len(c.policy.Counting(time.Now()))
	for i, k := range c.policy.Keys { // the time does not depend on the valid keys
		want := c.x.hostResponse(k, c.value, c.seq)
		if hmac.Equal(want, m.response) {
			c.key, c.expired = k, i >= counting && !proven
			proven = proven || i < counting
		}
		clear(want)
	}
	// S2 is 0 in a reply with a challenge that is only for secure channel concatenation.
	c.answers = m.value != nil && m.seq != 0
	if c.x.concatenation != NoConcatenation && m.value == nil {
		proven = false // without C2 there is no PSK
	}
	// The challenges must differ: otherwise a response could be that of another peer.
	if !proven || c.answers && (c.policy.ControllerKey == nil || hmac.Equal(m.value, c.value)) {
		c.fail(AuthenticationFailed)
		return
	}
	if c.x.concatenation != NoConcatenation {
		c.wipePSK()
		c.psk = c.x.generate(c.value, m.value)
	}
	var response []byte
	if c.answers {
		response = c.x.controllerResponse(c.policy.ControllerKey, m.value, m.seq)
	}
	c.step, c.message = success1ToRead, success1(c.x.tid, c.x.hash.Size(), response)
}

// fail ends the exchange with AUTH_Failure1, unless it has already failed.
func (c *Controller) fail(r Reason) {
	if c.state != Failed {
		c.end(Failed, r)
		c.step, c.message = failure1ToRead, failure(kindFailure1, c.x.tid, r)
	}
}

// end ends the exchange and wipes its secrets.
func (c *Controller) end(s State, r Reason) {
	c.x.wipe()
	if s == Failed {
		c.wipePSK()
	}
	c.policy, c.value, c.seq, c.message = nil, nil, 0, nil
	c.step, c.state, c.reason = awaitNegotiate, s, r
}
