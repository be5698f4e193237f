package auth

import (
	"crypto/hmac"
	"slices"
	"time"
)

// Policy is what a controller wants of a host. It does not change.
type Policy struct {
	// Keys are those of the host, each of which proves who it is: more than one while a key is
	// being replaced.
	Keys []*Key
	// OldUntil is when all but the first of Keys cease to count, and Until when all do, zero: not
	// by themselves.
	OldUntil, Until time.Time
	// Reauthenticate is how long an authentication is good for, 0: for ever.
	Reauthenticate time.Duration
	// ControllerKey proves to the host who the controller is; nil: it cannot.
	ControllerKey *Key
	// Hashes and Groups are those that the host may use, the first choice first; empty: AllHashes
	// and DefaultGroups.
	Hashes []Hash
	Groups []Group
}

// Counting returns those of Keys that prove at a time who the host is.
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

// choose selects what host and controller use, or says why there is nothing.
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

// State is what has become of the last exchange.
type State uint8

// The states.
const (
	Unfinished State = iota
	Authenticated
	Failed // AUTH_Failure1 is to be read, or has been, or the host has sent AUTH_Failure2
)

// step is what a controller waits for.
type step uint8

const (
	awaitNegotiate step = iota
	challengeToRead
	awaitReply
	success1ToRead
	awaitSuccess2
	failure1ToRead
	ended // after a failure: nothing else comes
)

// Controller is the side of the controller on one queue: exchanges one after the other, until one
// fails. Message and Read say what the host reads with Authentication Receive commands.
type Controller struct {
	// MustConcatenate says that an exchange without concatenation fails. It is set before the
	// first.
	MustConcatenate bool

	x       exchange
	policy  *Policy
	step    step
	state   State
	reason  Reason
	message []byte
	value   []byte // C1
	seq     uint32 // S1
	answers bool   // Success1 has a response: the host is to confirm it
	offers  Concatenation
	key     *Key    // that the host has proven to have
	expired bool    // which does not count any more
	psk     *TLSPSK // generated, until TakePSK
}

// NewController makes the controller's side for a host and a subsystem. offers is the concatenation
// that the queue can serve, which a host may ask for or not.
func NewController(hostNQN, subNQN string, offers Concatenation) *Controller {
	return &Controller{x: exchange{hostNQN: hostNQN, subNQN: subNQN}, offers: offers}
}

// TakePSK returns the PSK that an exchange has generated, which is the caller's then, or nil, and
// the key of the host that was used. There is one as soon as the host has been told to read that it
// has authenticated.
func (c *Controller) TakePSK() (*TLSPSK, *Key) {
	if c.state != Authenticated {
		return nil, nil
	}
	p := c.psk
	c.psk = nil
	return p, c.key
}

// State is that of the exchange; Unfinished before the first one.
func (c *Controller) State() State { return c.state }

// Ended says that the host has sent AUTH_Failure2, or has read AUTH_Failure1.
func (c *Controller) Ended() bool { return c.step == ended }

// Reason is why the exchange has failed.
func (c *Controller) Reason() Reason { return c.reason }

// Expired says that the exchange has failed because the host's key does not count any more, of
// which it is not told.
func (c *Controller) Expired() bool { return c.expired }

// Algorithms are those of the exchange, and whether the controller has authenticated itself.
func (c *Controller) Algorithms() (h Hash, g Group, bidirectional bool) {
	return c.x.hash, c.x.group, c.answers
}

// Sent processes a message that the host has sent, which becomes the controller's. p counts from
// the beginning of an exchange to its end; nil: the host has no key. It computes for milliseconds.
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

// Message is what the host reads next.
func (c *Controller) Message() []byte {
	switch c.step {
	case challengeToRead, success1ToRead, failure1ToRead:
	default:
		c.fail(IncorrectMessage) // nothing is to be read
	}
	if c.message == nil { // the host has sent AUTH_Failure2
		return failure(kindFailure1, c.x.tid, IncorrectMessage)
	}
	return c.message
}

// Wipe clears what is secret in an exchange that nobody will finish.
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
	for i, k := range c.policy.Keys { // whatever counts, it takes as long
		want := c.x.hostResponse(k, c.value, c.seq)
		if hmac.Equal(want, m.response) {
			c.key, c.expired = k, i >= counting && !proven
			proven = proven || i < counting
		}
		clear(want)
	}
	// S2 is 0 in a reply whose challenge is only for secure channel concatenation.
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

// fail ends the exchange with AUTH_Failure1, unless it has failed before.
func (c *Controller) fail(r Reason) {
	if c.state != Failed {
		c.end(Failed, r)
		c.step, c.message = failure1ToRead, failure(kindFailure1, c.x.tid, r)
	}
}

// end ends the exchange. Nothing secret is left.
func (c *Controller) end(s State, r Reason) {
	c.x.wipe()
	if s == Failed {
		c.wipePSK()
	}
	c.policy, c.value, c.seq, c.message = nil, nil, 0, nil
	c.step, c.state, c.reason = awaitNegotiate, s, r
}
