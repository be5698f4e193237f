package group

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"
)

// Access is the access of hosts to a group at a gateway.
type Access int

const (
	// Inaccessible means that the images are closed, or about to be.
	Inaccessible Access = iota
	// Change means that the group is given away, and its I/O ends.
	Change
	// Optimized means that the images are open.
	Optimized
)

// Config has the settings of a group at a gateway.
type Config struct {
	// Gateway is the name of this gateway, which no other one has. Home is that of its instances.
	Gateway, Home string
	// Prefers reports whether this gateway takes the group before others.
	Prefers bool
	// Lease is the time for which the group is held without renewal.
	Lease time.Duration
	// Poll is the time between reads of the record, Retry the time between a failure and the next
	// attempt.
	Poll, Retry time.Duration
	// MoveAfter is the time after which a group moves to the gateway that all its hosts use.
	MoveAfter time.Duration
	// FenceFor is the duration of fences, FenceCheck the time after which they are renewed.
	FenceFor, FenceCheck time.Duration
	// Reconnect is the least time between connections to the storage.
	Reconnect time.Duration
}

// Default returns the usual settings. A fence lasts for ten years, because engines may be unable
// to extend an existing one; the check notices a fence that was removed or is short.
func Default(gateway, home string, lease time.Duration) Config {
	return Config{
		Gateway: gateway, Home: home, Lease: lease, Poll: 2 * time.Second, Retry: lease / 6,
		MoveAfter: 10 * time.Second, FenceFor: 10 * 365 * 24 * time.Hour, FenceCheck: time.Hour,
		Reconnect: 10 * time.Second,
	}
}

// Op is an operation that a machine wants to be carried out.
type Op int

// At the same time, one operation with images, one OpRenew, and one other may be under way.
const (
	// OpConnect ends the connections of the last instance, and makes those of a new one.
	OpConnect Op = iota + 1
	// OpRead gets the record and the lessee.
	OpRead
	// OpWrite puts the record.
	OpWrite
	// OpFence fences instances.
	OpFence
	// OpAcquire breaks the lease of the instance Over, unless that is "", and takes the lease.
	OpAcquire
	// OpRelease releases the lease.
	OpRelease
	// OpRenew renews the lease.
	OpRenew
	// OpOpen opens the images.
	OpOpen
	// OpAsk asks which instances are present.
	OpAsk
	// OpClose ends all I/O, and closes the images. It takes as long as that takes.
	OpClose
)

// Action is an operation with its arguments.
type Action struct {
	Op        Op
	Record    *Record // OpWrite
	Version   uint64  // OpWrite
	Instances []Instance
	Over      string // OpAcquire
}

// Result is the end of an action. Each action has one.
type Result struct {
	Op       Op
	Err      error
	Instance *Instance // OpConnect
	// FencedItself, of OpConnect: the instance before may have fenced itself.
	FencedItself bool
	Record       *Record       // OpRead
	Version      uint64        // OpRead, OpWrite
	Lessee       string        // OpRead
	Left         time.Duration // OpFence
	Present      []string      // OpAsk; nil: not known
}

// phase is the progress of a gateway with a group.
type phase int

const (
	joining  phase = iota // it has no connection
	standby               // it waits until the group is free
	taking                // it takes the group over
	opening               // it is the holder, and opens the images
	serving               // hosts use the images
	stopping              // it closes the images and signs off
	left                  // it no longer takes part
)

// underway has the operations that have begun.
type underway struct{ storing, renewing, imaging bool }

// view is the record as it was last read or written.
type view struct {
	record  *Record
	version uint64
	lessee  string
	fresh   bool // nothing has changed it since, as far as is known
	again   bool // it may have changed while it was being read
	readAt  time.Duration
}

// tenure is the time for which this instance has the lease. It ends at until: two thirds of its
// duration, counted from before the last renewal was sent.
type tenure struct {
	held                 bool
	sent, until, renewAt time.Duration
}

// duty has the fences.
type duty struct {
	fenced    string        // the holder that this instance has fenced as the taker
	fencing   string        // the holder that is being fenced
	sentAt    time.Duration // when the last fence was sent
	fenceAt   time.Duration // when the fences are checked again
	lasting   bool          // they last until then
	checkedAt time.Duration // when the fences that have an answer were sent
	endAt     time.Duration // when the first of them ends
}

// published is the state of this gateway for the record.
type published struct {
	hosts   bool // hosts that use the group are connected here
	facts   json.RawMessage
	reserve []string // objects that the record must list
	removal
}

// trouble has the reasons why this gateway cannot take or keep the group.
type trouble struct {
	problem  string // in the record
	failedOp Op     // the last operation that failed and has not succeeded since
	failure  error  // its error
	failures int    // attempts to open the images since the last success

	suspect   bool // the last instance was fenced, and no record has been read since
	strangers int  // fences of this gateway that no gateway has made
}

// removal is under way while forget or evict is not "".
type removal struct {
	forget     string // a gateway to be removed from the record
	forgetting bool   // a write that does so has begun
	evict      string // the holder, which is fenced before its lease is over
}

// moving is the state of moves of the group to another gateway.
type moving struct {
	idle   bool          // the group may move
	moveAt time.Duration // the time from which it may
	wants  bool          // this gateway asks for the group, by Balance
	asked  bool          // its claim is for that
	yield  string        // the instance that may have the group if it asks, by Balance
	reason string        // why this gateway last took the group or gave it away

	asking  bool          // Ask waits for an answer
	present []string      // the instances that are present, nil: not known
	askAt   time.Duration // the time from which that no longer counts
	askedOf string        // the instance that claims the group, when it was asked for that reason
}

// Machine is one ANA group at one gateway. It has no goroutine and reads no clock: the caller
// passes the time since boot (CLOCK_BOOTTIME, which goes on while the machine sleeps), carries out
// the actions of Poll, and reports their results. One goroutine uses it at a time.
type Machine struct {
	cfg   Config
	me    *Instance
	phase phase

	underway
	view
	tenure
	duty
	published
	trouble
	open    bool // images may be open
	opened  bool // all images are open
	refused bool // the storage refuses this instance

	moving
	free      bool          // nobody has the group
	freeAt    time.Duration // the time since which nobody has it
	taker     string        // another instance that takes the group
	takerAt   time.Duration // when this gateway stops waiting for it
	holdOff   time.Duration // until then this gateway does not take the group
	connectAt time.Duration

	registered bool   // this instance takes part
	draining   bool   // this stop is orderly
	drained    bool   // the group is not taken
	leaving    bool   // this instance ends
	last       string // the last instance before this one, of the same process
}

// New returns a machine that has done nothing yet.
func New(cfg Config) *Machine { return &Machine{cfg: cfg} }

// Access returns the access of hosts at this time.
func (m *Machine) Access(now time.Duration) Access {
	switch {
	case m.phase == serving && now < m.until:
		return Optimized
	case m.phase == stopping && m.draining && m.open:
		return Change
	}
	return Inaccessible
}

// Notified reports that the record may have changed.
func (m *Machine) Notified(now time.Duration) { m.reread(now) }

// Hosts reports whether hosts that use the group are connected here.
func (m *Machine) Hosts(now time.Duration, connected bool) {
	if m.hosts != connected {
		m.hosts = connected
		m.idle = false
		m.reread(now)
	}
}

// Balance lets this gateway ask the holder for the group. As the holder it gives the group to the
// instance yield if that asks.
func (m *Machine) Balance(now time.Duration, wants bool, yield string) {
	if m.wants == wants && m.yield == yield {
		return
	}
	m.wants, m.yield = wants, yield
	m.idle, m.moveAt = wants && m.phase == standby, now
	m.reread(now)
}

// Describe publishes facts.
func (m *Machine) Describe(now time.Duration, facts json.RawMessage) {
	m.facts = facts
	m.reread(now)
}

// Drain gives the group away and does not take it until Drain is called with false.
func (m *Machine) Drain(now time.Duration, on bool) {
	m.drained = on
	if on {
		reason := "it is drained"
		if m.leaving {
			reason = "this gateway stops"
		}
		m.stop(true, reason)
	} else {
		m.failures, m.holdOff = 0, now
	}
	m.reread(now)
}

// Forget removes a gateway from the record: its processes have ended for good. One that runs takes
// part again.
func (m *Machine) Forget(now time.Duration, gateway string) {
	m.forget = gateway
	m.reread(now)
}

// Fence takes the group over from a gateway that holds it, whether its lease is over or not.
func (m *Machine) Fence(now time.Duration, gateway string) {
	if m.record != nil && m.record.Holder != nil && m.record.Holder.Gateway == gateway {
		m.evict, m.holdOff = m.record.Holder.ID, now
	}
	m.reread(now)
}

// Ask finds out which instances are present, if this one is.
func (m *Machine) Ask(now time.Duration) {
	m.asking = m.me != nil
	m.reread(now)
}

// HasHeir reports whether another gateway could take the group now, as far as is known.
func (m *Machine) HasHeir() bool {
	return m.me != nil && m.record != nil && slices.ContainsFunc(m.record.Instances, m.inherits)
}

// Reserve lists an object with promises in the record of the group, which this gateway holds, so
// that all gateways miss it. With any name, also "" for none, it keeps programs that do not know
// promises from taking the group.
func (m *Machine) Reserve(now time.Duration, object string) {
	if m.reserving(object) || m.Reserved(object) {
		return
	}
	m.reserve = append(m.reserve[max(len(m.reserve)-maxPromised+1, 0):], object)
	m.reread(now)
}

func (m *Machine) reserving(object string) bool { return slices.Contains(m.reserve, object) }

// Reserved reports whether Reserve has succeeded, for any gateway.
func (m *Machine) Reserved(object string) bool {
	return !m.reserving(object) && m.record != nil && m.record.promises(object)
}

// Leave gives the group away and withdraws this instance. Left reports when that is done.
func (m *Machine) Leave(now time.Duration) {
	m.leaving = true
	m.Drain(now, true)
}

// Left reports whether this instance has withdrawn.
func (m *Machine) Left() bool { return m.phase == left || m.phase == joining && m.leaving }

func (m *Machine) reread(now time.Duration) {
	m.fresh, m.again, m.readAt = false, true, now
}

// stop makes hosts use another gateway. An orderly stop is not due to a fault.
func (m *Machine) stop(orderly bool, reason string) {
	if m.phase == stopping {
		m.draining = m.draining && orderly
		return
	}
	if m.phase >= taking || m.refused && m.phase != joining {
		m.phase, m.draining, m.opened, m.reason = stopping, orderly, false, reason
		m.fresh, m.readAt = false, 0
	}
}

// Poll returns the actions to begin now. It is called after each change, and often enough for the
// times of the settings.
func (m *Machine) Poll(now time.Duration) (out []Action) {
	if m.held && m.phase != taking && now >= m.until {
		m.stop(false, "the lease was not renewed in time")
	}
	if m.held && !m.renewing && now >= m.renewAt && !m.refused {
		m.renewing, m.sent, m.renewAt = true, now, now+m.cfg.Retry
		out = append(out, Action{Op: OpRenew})
	}
	wanted := m.phase == opening || m.phase == serving
	if !m.imaging && wanted != m.open {
		m.imaging, m.open = true, true
		out = append(out, Action{Op: map[bool]Op{true: OpOpen, false: OpClose}[wanted]})
	}
	if !m.storing {
		if a := m.store(now); a != nil {
			m.storing = true
			out = append(out, *a)
		}
	}
	return out
}

// store returns the next operation with the record, the lease or the fences, nil for none.
func (m *Machine) store(now time.Duration) *Action {
	if m.phase == stopping && m.refused && !m.open && !m.imaging && !m.renewing {
		m.phase, m.last, m.me, m.held = joining, m.me.ID, nil, false
	}
	switch {
	case m.Left():
		return nil
	case m.phase == joining:
		if now < m.connectAt {
			return nil
		}
		m.connectAt = now + m.cfg.Reconnect
		return &Action{Op: OpConnect}
	case m.refused || m.phase == stopping && (m.open || m.imaging):
		return nil
	case !m.fresh:
		if now < m.readAt {
			return nil
		}
		m.again = false
		return &Action{Op: OpRead}
	}
	if a := m.decide(now); a != nil {
		return a
	}
	if m.fresh {
		if m.failedOp != OpOpen { // it is no longer wanted, or was carried out
			m.failedOp, m.failure = 0, nil
		}
		m.fresh, m.readAt = false, now+m.cfg.Poll
		if m.fenceAt > now {
			m.readAt = min(m.readAt, m.fenceAt)
		}
	}
	return nil
}

// decide returns the next operation that follows from a fresh record.
func (m *Machine) decide(now time.Duration) *Action {
	r := m.record
	if find(r.Fenced, m.me.ID) != nil { // another instance has taken over from this one
		m.refused = true
		m.stop(false, elsewhere)
		return nil
	}
	if !r.holds(m.evict) {
		m.evict = ""
	}
	if m.asking {
		return &Action{Op: OpAsk}
	}
	if m.phase == stopping {
		return m.signOff(now)
	}
	if m.leaving && m.phase == standby {
		if r.instance(m.me.ID) == nil {
			m.phase = left
			return nil
		}
		return m.write(func(r *Record) {
			r.Instances = without(r.Instances, func(i *Instance) bool { return i.ID == m.me.ID })
		})
	}
	if m.forget != "" {
		if a := m.forgetGateway(); a != nil {
			return a
		}
	}
	if mine := r.instance(m.me.ID); mine == nil || mine.Hosts != m.hosts ||
		!bytes.Equal(mine.Facts, m.facts) {
		if a := m.register(); a != nil {
			return a
		}
		if m.phase == standby {
			return nil
		}
	}
	if m.phase == standby && m.mayTake(now) {
		m.phase, m.duty, m.reason = taking, duty{}, m.whyTaken()
	}
	switch m.phase {
	case taking:
		return m.take(now)
	case opening, serving:
		return m.hold(now)
	}
	return m.claim(now)
}

// write returns the action that replaces the record.
func (m *Machine) write(change func(*Record)) *Action {
	r := *m.record
	change(&r)
	m.record, m.fresh = &r, false
	return &Action{Op: OpWrite, Record: &r, Version: m.version}
}

// register makes this instance part of the record, with its hosts, in place of an earlier instance
// of the same gateway.
func (m *Machine) register() *Action {
	same := func(i *Instance) bool { return i.ID == m.me.ID || i.Gateway == m.me.Gateway }
	others := without(m.record.Instances, same)
	switch {
	case m.registered && m.record.instance(m.me.ID) == nil && // else it was forgotten
		len(others) < len(m.record.Instances):
		m.problem = "another gateway has the name " + m.me.Gateway
		return nil
	case len(others) >= maxInstances:
		m.problem = "the record of the group is full"
		return nil
	}
	me := *m.me
	me.Hosts, me.Facts = m.hosts, m.facts
	return m.write(func(r *Record) {
		r.Instances = append(others, me)
		r.Fenced = slices.Clone(r.Fenced)
		for i := range r.Fenced {
			f := &r.Fenced[i]
			f.Ended = f.Ended || me.replaces(f)
		}
	})
}

// forgetGateway removes the gateway that is to be forgotten, unless it holds or takes the group. A
// former holder is marked as ended: its fence stays in force, and is not checked once it lasts.
func (m *Machine) forgetGateway() *Action {
	gone := func(i *Instance) bool {
		return i.Gateway == m.forget && i.ID != m.record.Taker && !m.record.holds(i.ID)
	}
	if !slices.ContainsFunc(m.record.Instances, func(i Instance) bool { return gone(&i) }) &&
		!slices.ContainsFunc(m.record.Fenced, func(i Instance) bool {
			return gone(&i) && !i.Ended
		}) {
		m.forget = ""
		return nil
	}
	m.forgetting = true
	return m.write(func(r *Record) {
		r.Instances = without(r.Instances, gone)
		r.Fenced = slices.Clone(r.Fenced)
		for i := range r.Fenced {
			r.Fenced[i].Ended = r.Fenced[i].Ended || gone(&r.Fenced[i])
		}
	})
}

// mayTake reports whether this gateway may take the group over.
func (m *Machine) mayTake(now time.Duration) bool {
	r, h := m.record, m.record.Holder
	// The holder is an earlier process only if this one had no instance yet. Otherwise it runs,
	// with a copy of the state directory.
	over := h != nil && (h.ID == m.me.ID || h.ID == m.last || m.last == "" && m.me.replaces(h) ||
		h.ID == m.evict)
	if m.lessee != "" && m.lessee != m.me.ID && !(over && m.lessee == h.ID) {
		m.free = false
		return false
	}
	if !m.free {
		m.free, m.freeAt = true, now
	}
	switch {
	case h != nil && h.ID != m.me.ID && len(h.Addrs) == 0:
		m.problem = "the holder has recorded no addresses, so it cannot be fenced"
		return false
	case len(r.Fenced) >= maxInstances:
		m.problem = "too many gateways were fenced and have not come back"
		return false
	case m.drained || now < m.holdOff:
		return false
	}
	if r.Taker == "" || r.Taker == m.me.ID {
		m.taker = ""
	} else if m.taker != r.Taker {
		m.taker, m.takerAt = r.Taker, now+2*m.cfg.Lease
	}
	if m.taker != "" && now < m.takerAt {
		return false
	}
	first := h != nil || r.Claim == m.me.ID || r.Claim == "" && m.cfg.Prefers
	return first || now >= m.freeAt+m.cfg.Lease
}

// elsewhere is the reason of a gateway that gives way to another one.
const elsewhere = "another gateway takes it"

// whyTaken returns the reason of a takeover that begins.
func (m *Machine) whyTaken() string {
	switch h := m.record.Holder; {
	case h == nil && m.record.Claim == m.me.ID && m.asked:
		return "this gateway served fewer groups"
	case h == nil && m.record.Claim == m.me.ID:
		return "another gateway gave it away"
	case h == nil:
		return "no gateway had it"
	case h.ID == m.evict:
		return "gateway " + h.Gateway + " is fenced by hand"
	case h.Gateway == m.me.Gateway:
		return "this gateway had it before"
	default:
		return "the lease of gateway " + h.Gateway + " was over"
	}
}

// take returns the next step of a takeover. All of them can be repeated, by this instance or by
// another one.
func (m *Machine) take(now time.Duration) *Action {
	r, h := m.record, m.record.Holder
	switch {
	case m.held && r.holds(m.me.ID) && r.Taker == "":
		m.phase = opening
		return m.hold(now)
	case r.Taker != m.me.ID:
		m.duty = duty{} // another instance may have been the holder
		if !m.mayTake(now) {
			m.stop(true, elsewhere)
			return nil
		}
		return m.write(func(r *Record) { r.Taker = m.me.ID })
	case h != nil && h.ID != m.me.ID && m.fenced != h.ID:
		m.fencing = h.ID
		return m.fence(now, append([]Instance{*h}, r.Fenced...))
	case !m.held:
		over := m.lessee
		if over == m.me.ID {
			over = ""
		}
		if over != "" && (h == nil || over != h.ID) {
			m.stop(true, elsewhere)
			return nil
		}
		m.sent = now
		return &Action{Op: OpAcquire, Over: over}
	}
	return m.write(func(r *Record) {
		if h != nil && h.ID != m.me.ID {
			f := *h
			f.Ended = m.me.replaces(h)
			r.Fenced = append(slices.Clone(r.Fenced), f)
			r.Instances = without(r.Instances, func(i *Instance) bool {
				return i.ID == h.ID
			})
		}
		r.Holder, r.Taker, r.Claim = m.me, "", ""
	})
}

func (m *Machine) fence(now time.Duration, list []Instance) *Action {
	m.sentAt = now
	return &Action{Op: OpFence, Instances: list}
}

// hold returns the next operation of the holder.
func (m *Machine) hold(now time.Duration) *Action {
	r := m.record
	if !r.holds(m.me.ID) || r.Taker != "" {
		m.stop(false, elsewhere)
		return nil
	}
	if len(m.reserve) > 0 && !r.promises(m.reserve...) {
		return m.write(func(r *Record) { r.promise(m.reserve) })
	}
	m.reserve = nil
	if len(r.Fenced) > 0 && now >= m.fenceAt {
		// A storage system may keep a fence for some seconds after its end. Until then it cannot be
		// renewed.
		if next := m.sentAt + m.cfg.Poll/4; now < next {
			m.fresh, m.readAt = false, next
			return nil
		}
		m.fencing = ""
		return m.fence(now, r.Fenced)
	}
	if ended := func(i *Instance) bool { return i.Ended }; m.lasting &&
		slices.ContainsFunc(r.Fenced, func(i Instance) bool { return i.Ended }) {
		return m.write(func(r *Record) { r.Fenced = without(r.Fenced, ended) })
	}
	if m.phase == opening {
		if m.opened {
			m.phase, m.idle = serving, false
		}
		return nil
	}
	to := r.instance(r.Claim)
	switch {
	case to != nil && r.Claim == m.yield:
		return m.give(now, "gateway "+to.Gateway+" serves fewer groups")
	case m.hosts:
		m.idle = false
		if r.Claim != "" {
			return m.write(func(r *Record) { r.Claim = "" })
		}
	case !m.idle:
		m.idle, m.moveAt = true, now+m.cfg.MoveAfter
	case now >= m.moveAt && r.Claim != m.me.ID && to != nil:
		return m.give(now, "all hosts are at other gateways")
	}
	return nil
}

// give gives the group to the instance that claims it, if that is present.
func (m *Machine) give(now time.Duration, reason string) *Action {
	switch {
	case now >= m.askAt || m.askedOf != m.record.Claim: // that one may be newer than the answer
		m.askedOf = m.record.Claim
		return &Action{Op: OpAsk}
	case !m.inherits(*m.record.instance(m.record.Claim)):
		return m.write(func(r *Record) { r.Claim = "" })
	}
	m.stop(true, reason)
	return nil
}

// claim asks the holder for the group if the holder has no hosts, or serves more groups.
func (m *Machine) claim(now time.Duration) *Action {
	r := m.record
	if r.Holder == nil || !m.hosts || m.drained || now < m.holdOff {
		m.idle = false
		return nil
	}
	holder := r.instance(r.Holder.ID)
	switch {
	case !m.wants && (holder == nil || holder.Hosts):
		m.idle = false
	case !m.idle:
		m.idle, m.moveAt = true, now+m.cfg.MoveAfter
	case now >= m.moveAt && r.Claim != m.me.ID:
		m.moveAt, m.asked = now+m.cfg.MoveAfter, m.wants
		if m.wants { // a holder that comes to the same decision later has removed the claim
			m.moveAt = now + m.cfg.MoveAfter/4
		}
		return m.write(func(r *Record) { r.Claim = m.me.ID })
	}
	return nil
}

// signOff ends the part of this instance after the images are closed. The record comes before the
// lease, or another gateway would fence this one.
func (m *Machine) signOff(now time.Duration) *Action {
	r := m.record
	if r.holds(m.me.ID) || r.Taker == m.me.ID {
		m.holdOff = now + m.cfg.Lease<<m.failures // not later: Drain may end that meanwhile
		return m.write(func(r *Record) {
			if r.Taker == m.me.ID {
				r.Taker = ""
			}
			if !r.holds(m.me.ID) {
				return
			}
			r.Holder = nil
			if to := r.instance(r.Claim); to == nil || !m.inherits(*to) {
				r.Claim = m.heir()
			}
		})
	}
	if m.held {
		return &Action{Op: OpRelease}
	}
	m.phase, m.free, m.idle = standby, false, false
	if m.failedOp != OpOpen { // that failure stays until the next attempt
		m.failedOp, m.failure = 0, nil
	}
	return nil
}

// heir returns the ID of an instance that should take the group, "" if there is none. Instances
// that are present come first, then the ones with hosts.
func (m *Machine) heir() (id string) {
	most := -1
	for _, i := range m.record.Instances {
		rank := 0
		if i.Hosts {
			rank++
		}
		if m.inherits(i) {
			rank += 2
		}
		if i.ID != m.me.ID && !i.facts().Drained && rank > most {
			id, most = i.ID, rank
		}
	}
	return id
}

// inherits reports whether an instance could take the group now, as far as is known.
func (m *Machine) inherits(i Instance) bool {
	return i.ID != m.me.ID && !i.facts().Drained &&
		(m.present == nil || slices.Contains(m.present, i.ID))
}

// Done takes the result of an action.
func (m *Machine) Done(now time.Duration, r *Result) {
	switch r.Op {
	case OpRenew:
		m.renewing = false
	case OpOpen, OpClose:
		m.imaging = false
	default:
		m.storing = false
		if m.forgetting && r.Err == nil {
			m.forget = "" // it may take part again
		}
		m.forgetting = false
	}
	if r.Op == OpAsk {
		m.asking, m.present, m.askAt = false, r.Present, now+m.cfg.MoveAfter
		if !errors.Is(r.Err, ErrFenced) {
			return // an error: it is not known
		}
	}
	if errors.Is(r.Err, ErrFenced) {
		m.refused, m.held = true, false
		m.stop(false, "the storage refuses this gateway")
	}
	if r.Err != nil {
		m.failed(now, r)
		return
	}
	if m.failedOp == r.Op || r.Op == OpConnect {
		m.failedOp, m.failure = 0, nil
	}
	switch r.Op {
	case OpConnect:
		m.me, m.phase = r.Instance, standby
		m.suspect = m.refused && !r.FencedItself
		m.refused, m.registered, m.free, m.idle = false, false, false, false
		m.reread(now)
	case OpRead:
		// A gateway changes the record before it fences another one, but others may change it, too.
		if m.suspect && r.Version == m.version && r.Record.Taker == "" &&
			find(r.Record.Fenced, m.last) == nil {
			m.strangers++
		}
		m.suspect = false
		m.record, m.version, m.lessee = r.Record, r.Version, r.Lessee
		m.fresh, m.problem = !m.again, ""
		m.registered = m.registered || m.record.instance(m.me.ID) != nil
		if m.phase != opening && m.phase != serving {
			m.reserve = nil // another gateway may have listed them
		}
		m.asked = m.asked && m.record.Claim == m.me.ID
	case OpWrite:
		m.version, m.fresh, m.registered = r.Version, !m.again, true
	case OpFence:
		m.fenced, m.fenceAt = m.fencing, m.sentAt+min(r.Left, m.cfg.FenceCheck)
		m.lasting = r.Left >= m.cfg.FenceCheck
		m.checkedAt, m.endAt = m.sentAt, m.sentAt+r.Left
		m.reread(now)
	case OpAcquire:
		m.held = true
		m.extend()
		m.reread(now)
	case OpRenew:
		if m.held {
			m.extend()
		}
	case OpRelease:
		m.held = false
		m.reread(now)
	case OpOpen:
		m.opened, m.failures = m.phase == opening, 0
		m.reread(now)
	case OpClose:
		m.open = false
		m.asking = m.asking || !m.refused && now >= m.askAt // before it signs off, once
		m.reread(now)
	}
}

// maxFailures limits the time for which a gateway leaves a group to others after it could not open
// the images again: 8 leases.
const maxFailures = 3

// extend counts the lease from the time at which the last request for it was sent.
func (m *Machine) extend() {
	m.until, m.renewAt = m.sent+m.cfg.Lease*2/3, m.sent+m.cfg.Retry
}

// failed takes a result with an error.
func (m *Machine) failed(now time.Duration, r *Result) {
	switch {
	case r.Op == OpRenew:
		if errors.Is(r.Err, ErrLost) {
			m.held = false
			m.stop(false, "the lease is lost")
		}
		return
	case r.Op == OpOpen && !m.refused:
		m.failures = min(m.failures+1, maxFailures)
		m.stop(false, "no image can be opened")
	}
	if !errors.Is(r.Err, ErrConflict) && !errors.Is(r.Err, ErrHeld) {
		m.failedOp, m.failure = r.Op, r.Err
	}
	m.fresh, m.readAt = false, now
	if !errors.Is(r.Err, ErrConflict) {
		m.readAt = now + m.cfg.Retry
	}
}

// Status describes the group at this gateway.
type Status struct {
	Phase     string
	Holder    string        // the gateway that holds the group, "" for none
	Left      time.Duration // until this gateway ends its use of the group
	Instances []Instance    // the gateways that take part
	Version   uint64        // of the record that this is from
	Fenced    []Instance    // former holders that have not signed off
	Problem   string        // why this gateway cannot take the group
	// Differences are between the facts of this gateway and of others, by Group.
	Differences []string
	Drained     bool // this gateway does not take the group
	Hosts       bool // hosts that use the group are connected here
	// Reason is why this gateway last took the group or gave it away.
	Reason string
	// Strangers counts the fences of this gateway that no gateway of the group has made.
	Strangers int

	HeldFor   time.Duration // the time for which Holder is known, by Group
	connected string        // a hash of the hosts that are connected here, by Balance
	// Checked is the time since the fences were checked, and FencedFor how long they last at least,
	// if this gateway serves the group.
	Checked, FencedFor time.Duration
}

// Status returns the current status.
func (m *Machine) Status(now time.Duration) Status {
	s := Status{
		Phase: phases[m.phase], Problem: m.problem, Drained: m.drained, Hosts: m.hosts,
		Version: m.version, Reason: m.reason, Strangers: m.strangers,
	}
	if s.Problem == "" && m.failure != nil {
		s.Problem = m.failure.Error()
	}
	if m.held {
		s.Left = max(m.until-now, 0)
	}
	if m.record != nil {
		s.Instances, s.Fenced = m.record.Instances, m.record.Fenced
		if m.record.Holder != nil {
			s.Holder = m.record.Holder.Gateway
		}
	}
	if m.phase == serving && len(s.Fenced) > 0 {
		s.Checked, s.FencedFor = now-m.checkedAt, max(m.endAt-now, 0)
	}
	return s
}

var phases = [...]string{"joining", "standby", "taking", "opening", "serving", "stopping", "left"}
