package group

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// The model has two gateways, a storage system and a host that writes 1, 2, 3... to one block. It
// visits every state that can be reached within a budget of faults, breadth first. Time passes in
// ticks, and a lease lasts 3 of them.

// budget bounds the faults of a model, and its length in ticks. An operation ends within the tick
// in which it began, after any others, unless its gateway is paused or one of the delays is spent.
type budget struct {
	ticks, pauses, crashes, slips, delays, faults, drains, strangers, evictions, writes, moves int
	preempts                                                                                   int
}

// world is a state of the model. It is copied, so the slices and records are replaced, never
// changed.
type world struct {
	now    int
	left   budget
	record *Record
	// version is that of the record.
	version  uint64
	lessee   string
	leaseEnd int
	fences   []fenced
	gateways [2]gateway
	ghosts   []op    // operations that nobody waits for, and that can still be carried out
	writes   []write // of data, in flight
	image    int
	acked    int // the last write that the host knows to have succeeded
	path     int // the gateway that has the host's next write, -1 for none
	// evicted: a gateway was fenced by hand. It may not know, and believe that it serves the group.
	evicted bool
	late    bool // a write was carried out after a preempt that was to end it
}

// fenced is a fence of an instance until a tick.
type fenced struct {
	id  string
	end int
}

// op is an operation in flight. applied: the storage has carried it out, and its gateway was paused
// before it got the result.
type op struct {
	id      string
	action  Action
	applied bool
	result  Result
}

// write is a write of a value to the block by an instance.
type write struct {
	gateway int // -1: it has crashed
	id      string
	value   int
	applied bool
	left    int  // ticks for which the kernel sends it, of a crashed gateway
	revoked bool // another host has preempted the writer since
}

type gateway struct {
	m               Machine
	access          Access // the access that its data path knows
	paused, crashed bool
	asleep          bool // it has not run since it was paused
	slipped         int  // ticks that its clock has missed
	births          int
	ops             []op
}

// mutant is a fault in the protocol that the model has to find.
type mutant int

const (
	correct mutant = iota
	noRenewal
	answerFirst // hosts are served before the fence
	noFence
	signOffFirst // a drained gateway signs off before its I/O has ended
	wholeLease   // the lease is counted from its answer, and used to its end
	anyFence     // a fence without an answer counts
)

var settings = Config{
	Lease: 3, Poll: 2, Retry: 1, MoveAfter: 1 << 20, FenceFor: 4, FenceCheck: 1, Reconnect: 1,
}

var names = [...]string{"a", "b"}

// model explores worlds.
type model struct {
	mutant mutant
	only   string // the beginning of the faults to find
	seen   map[string]bool
	queue  []node
	keys   map[*Record]string
	most   int
	broken string
	buf    []byte
	opens  int   // attempts to open the images
	noOpen error // of all of them
}

// node is a world with the step that led to it from another node.
type node struct {
	w      *world
	parent int
	step   step
	depth  int
}

// step is a transition, as text with the gateway and a number.
type step struct {
	text string
	g, n int
}

func (s step) String() string {
	return fmt.Sprintf("%s %s %d", []string{"-", "a", "b"}[s.g+1], s.text, s.n)
}

func (w *world) clock(g int) time.Duration {
	return time.Duration(w.now - w.gateways[g].slipped)
}

func (w *world) isFenced(id string) bool {
	return slices.ContainsFunc(w.fences, func(f fenced) bool { return f.id == id && f.end > w.now })
}

// poll lets a gateway begin actions.
func (x *model) poll(w *world, g int) {
	gw := &w.gateways[g]
	gw.asleep = false
	for _, a := range gw.m.Poll(w.clock(g)) {
		id := ""
		if gw.m.me != nil {
			id = gw.m.me.ID
		}
		gw.ops = append(slices.Clone(gw.ops), op{id: id, action: a})
	}
	gw.access = gw.m.Access(w.clock(g))
	if x.mutant == answerFirst && gw.m.phase == taking {
		gw.access = Optimized
	}
}

// apply carries an operation out.
func (x *model) apply(w *world, o *op, g int) {
	a := &o.action
	o.applied, o.result = true, Result{Op: a.Op}
	r := &o.result
	if o.id != "" && w.isFenced(o.id) && a.Op != OpConnect && a.Op != OpClose && a.Op != OpFence {
		r.Err = ErrFenced
		return
	}
	if w.leaseEnd <= w.now {
		w.lessee = ""
	}
	switch a.Op {
	case OpConnect:
		gw := &w.gateways[g]
		id := fmt.Sprintf("%s%d", names[g], gw.births)
		gw.births++
		r.Instance = &Instance{
			ID: id, Gateway: gw.m.cfg.Gateway, Home: gw.m.cfg.Home, Addrs: []string{id},
		}
	case OpOpen:
		x.opens++
		r.Err = x.noOpen
	case OpRead:
		r.Record, r.Version, r.Lessee = w.record, w.version, w.lessee
	case OpAsk:
		r.Present = []string{o.id}
		for i := range w.gateways {
			gw := &w.gateways[i]
			if gw.m.me != nil && !gw.paused && !gw.crashed && !w.isFenced(gw.m.me.ID) {
				r.Present = append(r.Present, gw.m.me.ID)
			}
		}
	case OpWrite:
		if a.Version != w.version {
			r.Err = ErrConflict
			return
		}
		w.version++
		w.record, r.Version = a.Record, w.version
	case OpFence:
		r.Left = settings.FenceFor
		if x.mutant == noFence {
			return
		}
		for i := range a.Instances {
			id := a.Instances[i].ID
			f := slices.DeleteFunc(slices.Clone(w.fences), func(f fenced) bool {
				return f.id == id
			})
			w.fences = append(f, fenced{id, w.now + int(settings.FenceFor)})
		}
	case OpAcquire:
		if w.lessee == a.Over {
			w.lessee = ""
		}
		if w.lessee != "" && w.lessee != o.id {
			r.Err = ErrHeld
			return
		}
		w.lessee, w.leaseEnd = o.id, w.now+int(settings.Lease)
	case OpRenew:
		if w.lessee != o.id {
			r.Err = ErrLost
			return
		}
		w.leaseEnd = w.now + int(settings.Lease)
	case OpRelease:
		if w.lessee == o.id {
			w.lessee = ""
		}
	}
}

var errUnknown = errors.New("no answer")

// deliver gives a result to a gateway.
func (x *model) deliver(w *world, g, i int, unknown bool) {
	gw := &w.gateways[g]
	o := gw.ops[i]
	gw.ops = slices.Delete(slices.Clone(gw.ops), i, i+1)
	r := o.result
	if unknown {
		r = Result{Op: o.action.Op, Err: errUnknown}
	}
	gw.m.Done(w.clock(g), &r)
	switch {
	case x.mutant == noRenewal:
		gw.m.fenceAt = 1 << 40
	case x.mutant == anyFence && unknown && r.Op == OpFence:
		gw.m.fenced = gw.m.fencing
	}
	if x.mutant == wholeLease && gw.m.held && (o.action.Op == OpRenew || o.action.Op == OpAcquire) {
		gw.m.until = w.clock(g) + settings.Lease
	}
	x.poll(w, g)
}

// closable reports whether the I/O of a gateway has ended.
func (w *world) closable(g int) bool {
	return !slices.ContainsFunc(w.writes, func(d write) bool {
		return d.gateway == g && !d.applied
	})
}

// next calls visit with every world that can follow.
func (x *model) next(w *world, visit func(step, *world)) {
	with := func(change func(*world)) *world {
		c := *w
		change(&c)
		return &c
	}
	x.time(w, with, visit)
	x.host(w, with, visit)
	for i := range w.ghosts {
		visit(step{"late op", -1, int(w.ghosts[i].action.Op)}, with(func(c *world) {
			o := c.ghosts[i]
			c.ghosts = slices.Delete(slices.Clone(c.ghosts), i, i+1)
			x.apply(c, &o, -1)
		}))
	}
	for g := range w.gateways {
		gw := &w.gateways[g]
		if gw.crashed {
			visit(step{"starts", g, 0}, with(func(c *world) {
				c.gateways[g] = gateway{
					m: *New(gw.m.cfg), slipped: gw.slipped, births: gw.births,
				}
				x.poll(c, g)
			}))
			continue
		}
		for i := range gw.ops {
			x.op(w, g, i, with, visit)
		}
		x.faults(w, g, with, visit)
	}
}

// op lets an operation be carried out, and its result come.
func (x *model) op(w *world, g, i int, with func(func(*world)) *world, visit func(step, *world)) {
	gw := &w.gateways[g]
	o := &gw.ops[i]
	n := int(o.action.Op)
	if o.action.Op == OpClose && !w.closable(g) && x.mutant != signOffFirst {
		return
	}
	apply := func(c *world) {
		if !o.applied {
			ops := slices.Clone(gw.ops)
			x.apply(c, &ops[i], g)
			c.gateways[g].ops = ops
		}
	}
	if !gw.paused {
		visit(step{"does", g, n}, with(func(c *world) {
			apply(c)
			x.deliver(c, g, i, false)
		}))
		if w.left.faults > 0 && o.action.Op != OpConnect && o.action.Op != OpClose {
			visit(step{"does and gets no answer", g, n}, with(func(c *world) {
				c.left.faults--
				apply(c)
				x.deliver(c, g, i, true)
			}))
			if !o.applied && !slices.Contains([]Op{OpRead, OpAsk, OpOpen}, o.action.Op) {
				visit(step{"gets no answer and does it later or never", g, n},
					with(func(c *world) {
						c.left.faults--
						c.ghosts = append(slices.Clone(c.ghosts), *o)
						x.deliver(c, g, i, true)
					}))
			}
		}
	}
	if !o.applied && (gw.paused || w.left.pauses > 0) {
		visit(step{"does and pauses", g, n}, with(func(c *world) {
			if !gw.paused {
				c.left.pauses--
				c.gateways[g].paused = true
			}
			apply(c)
		}))
	}
}

func (x *model) faults(w *world, g int, with func(func(*world)) *world,
	visit func(step, *world),
) {
	gw := &w.gateways[g]
	if gw.paused {
		visit(step{"continues", g, 0}, with(func(c *world) {
			c.gateways[g].paused, c.gateways[g].asleep = false, true
		}))
	} else if w.left.pauses > 0 {
		visit(step{"pauses", g, 0}, with(func(c *world) {
			c.left.pauses--
			c.gateways[g].paused = true
		}))
	}
	if w.left.crashes > 0 {
		visit(step{"crashes", g, 0}, with(func(c *world) {
			c.left.crashes--
			c.gateways[g].crashed = true
			c.ghosts = slices.Clone(c.ghosts)
			for _, o := range gw.ops {
				if !o.applied && (o.action.Op == OpAcquire || o.action.Op == OpWrite) {
					c.ghosts = append(c.ghosts, o)
				}
			}
			c.gateways[g].ops, c.gateways[g].paused = nil, false
			c.writes = slices.Clone(c.writes)
			for i := range c.writes {
				if c.writes[i].gateway == g {
					c.writes[i].gateway, c.writes[i].left = -1, int(settings.FenceCheck)
				}
			}
			c.writes = slices.DeleteFunc(c.writes, func(d write) bool {
				return d.gateway < 0 && d.applied
			})
			if c.path == g {
				c.path = -1
			}
		}))
	}
	if w.left.drains > 0 && !gw.paused && gw.m.me != nil {
		visit(step{"drains", g, 0}, with(func(c *world) {
			c.left.drains--
			c.gateways[g].m.Drain(c.clock(g), true)
			x.poll(c, g)
		}))
	}
	if w.left.moves > 0 && !gw.paused && gw.m.me != nil {
		visit(step{"asks for the group, or would give it", g, 0}, with(func(c *world) {
			c.left.moves--
			m := &c.gateways[g].m
			other := fmt.Sprint(names[1-g], w.gateways[1-g].births-1)
			m.Balance(c.clock(g), m.phase == standby, other)
			x.poll(c, g)
		}))
	}
	if w.left.evictions > 0 && !gw.paused && gw.m.me != nil {
		visit(step{"fences the other by hand", g, 0}, with(func(c *world) {
			c.left.evictions--
			c.evicted = true
			c.gateways[g].m.Fence(c.clock(g), names[1-g])
			x.poll(c, g)
		}))
	}
	if w.left.strangers > 0 && gw.m.me != nil && !w.isFenced(gw.m.me.ID) {
		visit(step{"is fenced by a stranger", g, 0}, with(func(c *world) {
			c.left.strangers--
			c.fences = append(slices.Clone(c.fences), fenced{gw.m.me.ID, c.now + 2})
		}))
	}
}

// time lets a tick pass. A clock may miss it.
func (x *model) time(w *world, with func(func(*world)) *world, visit func(step, *world)) {
	if w.left.ticks == 0 || w.neglected() {
		return
	}
	delayed := 0
	for g := range w.gateways {
		if gw := &w.gateways[g]; !gw.paused {
			for i := range gw.ops {
				if gw.ops[i].action.Op != OpClose || w.closable(g) {
					delayed++
				}
			}
		}
	}
	if delayed > w.left.delays {
		return
	}
	for slow := -1; slow < 2; slow++ {
		if slow >= 0 && w.left.slips == 0 {
			continue
		}
		visit(step{"clock misses a tick", slow, 0}, with(func(c *world) {
			c.left.ticks--
			c.left.delays -= delayed
			c.now++
			if slow >= 0 {
				c.left.slips--
				c.gateways[slow].slipped++
			}
			c.fences = slices.DeleteFunc(slices.Clone(c.fences), func(f fenced) bool {
				return f.end <= c.now
			})
			c.writes = slices.DeleteFunc(slices.Clone(c.writes), func(d write) bool {
				return d.gateway < 0 && d.left == 0
			})
			for i := range c.writes {
				c.writes[i].left = max(c.writes[i].left-1, 0)
			}
			for g := range c.gateways {
				if gw := &c.gateways[g]; !gw.paused && !gw.crashed {
					x.poll(c, g)
				}
			}
		}))
	}
}

// neglected reports whether a fence is about to end that nobody can renew: the holder is paused,
// or waits for the storage. The protocol relies on that to be shorter than a fence.
func (w *world) neglected() bool {
	if !slices.ContainsFunc(w.fences, func(f fenced) bool { return f.end <= w.now+1 }) {
		return false
	}
	for g := range w.gateways {
		gw := &w.gateways[g]
		able := !gw.paused && !gw.crashed && !gw.asleep && !gw.m.storing
		if able && gw.m.phase == serving {
			return false
		}
	}
	return true
}

// host is a host that sends a write again on the other path when one does not answer.
func (x *model) host(w *world, with func(func(*world)) *world, visit func(step, *world)) {
	if w.path >= 0 {
		visit(step{"host gives up", w.path, 0}, with(func(c *world) { c.path = -1 }))
	}
	for g := range w.gateways {
		gw := &w.gateways[g]
		busy := slices.ContainsFunc(w.writes, func(d write) bool { return d.gateway == g })
		if w.path < 0 && w.acked < w.left.writes && gw.access == Optimized && !gw.paused &&
			!gw.crashed && !busy && gw.m.me != nil {
			visit(step{"host writes", g, w.acked + 1}, with(func(c *world) {
				c.path = g
				c.writes = append(slices.Clone(c.writes), write{
					gateway: g, id: gw.m.me.ID, value: w.acked + 1,
				})
			}))
		}
	}
	x.preempt(w, with, visit)
	for i, d := range w.writes {
		drop := func(c *world) { c.writes = slices.Delete(slices.Clone(c.writes), i, i+1) }
		switch {
		case !d.applied && w.isFenced(d.id):
			visit(step{"write is refused", d.gateway, d.value}, with(func(c *world) {
				drop(c)
				if c.path == d.gateway {
					c.path = -1
				}
			}))
		case !d.applied:
			visit(step{"write is carried out", d.gateway, d.value}, with(func(c *world) {
				c.image, c.late = d.value, c.late || d.revoked
				c.writes = slices.Clone(c.writes)
				c.writes[i].applied = true
				if d.gateway < 0 {
					drop(c)
				}
			}))
		case !w.gateways[d.gateway].paused:
			visit(step{"answer", d.gateway, d.value}, with(func(c *world) {
				drop(c)
				if c.path == d.gateway && d.value == c.acked+1 {
					c.acked, c.path = d.value, -1
				}
			}))
		}
	}
}

// preempt is a preempt by another host at a gateway that serves the group. It succeeds when the
// cluster has written its object, and no write of the gateway is in flight. Writes that other
// gateways have may have been carried out before, and are answered later, but none is carried out.
func (x *model) preempt(w *world, with func(func(*world)) *world, visit func(step, *world)) {
	for g := range w.gateways {
		gw := &w.gateways[g]
		if w.left.preempts > 0 && gw.access == Optimized && !gw.paused && !gw.crashed &&
			gw.m.me != nil && !w.isFenced(gw.m.me.ID) && w.closable(g) {
			visit(step{"host preempts", g, 0}, with(func(c *world) {
				c.left.preempts--
				c.writes = slices.Clone(c.writes)
				for i := range c.writes {
					c.writes[i].revoked = true
				}
			}))
		}
	}
}

// check returns the fault of a world, "" for none.
func (w *world) check() string {
	if w.late {
		return "a write was carried out after a preempt"
	}
	if w.image < w.acked {
		return fmt.Sprintf("write %d was acknowledged, and the block has %d", w.acked, w.image)
	}
	using, open := 0, 0
	for g := range w.gateways {
		gw := &w.gateways[g]
		if gw.crashed {
			continue
		}
		fenced := gw.m.me != nil && w.isFenced(gw.m.me.ID)
		if gw.m.Access(w.clock(g)) == Optimized && !(w.evicted && fenced) {
			using++
			if !gw.m.opened {
				return "a gateway serves the group before its images are open"
			}
		}
		if gw.m.open && !fenced {
			open++
		}
	}
	switch {
	case using > 1:
		return "both gateways serve the group"
	case open > 1:
		return "both gateways have opened the images"
	}
	return ""
}

// start returns the world in which a serves the group and b could.
func (x *model) start(b budget) *world {
	w := &world{left: b, record: &Record{Format: format}, path: -1}
	for g := range w.gateways {
		cfg := settings
		cfg.Gateway, cfg.Home, cfg.Prefers = names[g], names[g], g == 0
		w.gateways[g] = gateway{m: *New(cfg)}
		x.poll(w, g)
	}
	for w.gateways[0].m.phase != serving || !w.gateways[1].m.registered {
		for g := range w.gateways {
			x.finish(w, g)
		}
		w.now++
		for g := range w.gateways {
			x.poll(w, g)
		}
	}
	return w
}

// used goes on from start: hosts are connected to both.
func (x *model) used(b budget) *world {
	w := x.start(b)
	for g := range w.gateways {
		w.gateways[g].m.Hosts(w.clock(g), true)
		x.poll(w, g)
		x.finish(w, g)
	}
	return w
}

// finish carries all operations of a gateway out.
func (x *model) finish(w *world, g int) {
	for len(w.gateways[g].ops) > 0 {
		ops := slices.Clone(w.gateways[g].ops)
		x.apply(w, &ops[0], g)
		w.gateways[g].ops = ops
		x.deliver(w, g, 0, false)
	}
}

// explore visits worlds until one is wrong or there are most. It reports whether it has visited
// all.
func (x *model) explore(s scenario) bool {
	x.seen, x.keys = map[string]bool{}, map[*Record]string{}
	w := s.from(x, s.budget)
	x.queue = []node{{w: w, parent: -1}}
	x.seen[string(x.key(w))] = true
	for i := 0; i < len(x.queue) && x.broken == ""; i++ {
		if len(x.queue) > x.most {
			return false
		}
		x.next(x.queue[i].w, func(by step, w *world) {
			key := x.key(w)
			if x.broken != "" || x.seen[string(key)] {
				return
			}
			x.seen[string(key)] = true
			x.queue = append(x.queue, node{w, i, by, x.queue[i].depth + 1})
			if fault := w.check(); fault != "" && strings.HasPrefix(fault, x.only) {
				x.broken = fault + ":" + x.trace(len(x.queue)-1)
			}
		})
		x.queue[i].w = nil
	}
	return x.broken == ""
}

// trace returns the steps that led to a node.
func (x *model) trace(i int) string {
	var steps []string
	for ; x.queue[i].parent >= 0; i = x.queue[i].parent {
		steps = append(steps, x.queue[i].step.String())
	}
	slices.Reverse(steps)
	return "\n  " + strings.Join(steps, "\n  ")
}

// stopped goes on from start: a is paused with a write in flight.
func (x *model) stopped(b budget) *world {
	w := x.start(b)
	w.path, w.writes = 0, []write{{gateway: 0, id: w.gateways[0].m.me.ID, value: 1}}
	w.gateways[0].paused = true
	return w
}

// takenOver goes on from stopped: b has taken over.
func (x *model) takenOver(b budget) *world {
	w := x.stopped(b)
	for w.gateways[1].m.phase != serving {
		w.now++
		x.poll(w, 1)
		x.finish(w, 1)
	}
	return w
}

// before goes on from stopped: b takes over, and has begun the operation that last selects.
func before(last func(*Action) bool) func(*model, budget) *world {
	return func(x *model, b budget) *world {
		w := x.stopped(b)
		for {
			w.now++
			x.poll(w, 1)
			for gw := &w.gateways[1]; len(gw.ops) > 0; {
				if last(&gw.ops[0].action) {
					return w
				}
				ops := slices.Clone(gw.ops)
				x.apply(w, &ops[0], 1)
				gw.ops = ops
				x.deliver(w, 1, 0, false)
			}
		}
	}
}

func fences(a *Action) bool { return a.Op == OpFence }

func becomesHolder(a *Action) bool {
	return a.Op == OpWrite && a.Record.Holder != nil && a.Record.Holder.Gateway == "b"
}

// halfTaken goes on from stopped: b is paused before it becomes the holder, and a goes on.
func (x *model) halfTaken(b budget) *world {
	w := before(becomesHolder)(x, b)
	w.gateways[0].paused, w.gateways[1].paused = false, true
	return w
}

// scenario is a budget with the place to begin.
type scenario struct {
	from func(*model, budget) *world
	budget
}

// scenarios are the scenarios of make test.
var scenarios = []scenario{
	{(*model).start, budget{ticks: 9, crashes: 1, writes: 2}},
	{(*model).start, budget{ticks: 9, drains: 1, writes: 2}},
	{(*model).start, budget{ticks: 9, strangers: 1, writes: 2}},
	{(*model).start, budget{ticks: 9, evictions: 1, writes: 2}},
	{(*model).stopped, budget{ticks: 6, evictions: 1, writes: 2}},
	{(*model).takenOver, budget{ticks: 6, writes: 2}},
	{before(fences), budget{ticks: 6, faults: 1, delays: 1, writes: 2}},
	{before(becomesHolder), budget{ticks: 6, faults: 1, writes: 2}},
	{(*model).halfTaken, budget{ticks: 16, writes: 2}},
	{(*model).used, budget{ticks: 9, moves: 2, crashes: 1, writes: 2}},
	{(*model).used, budget{ticks: 9, moves: 2, pauses: 1, writes: 2}},
	{(*model).takenOver, budget{ticks: 9, pauses: 1, crashes: 1, writes: 2}},
	{(*model).start, budget{ticks: 9, pauses: 1, slips: 1, delays: 1, writes: 2}},
	{(*model).start, budget{ticks: 9, pauses: 1, faults: 1, writes: 2}},
}

func TestModel(t *testing.T) {
	for i, s := range scenarios {
		x := &model{most: 15_000}
		x.explore(s)
		testutil.True(t, x.broken == "", "scenario %d: %s", i, x.broken)
	}
}

func TestMutants(t *testing.T) {
	for m, s := range map[mutant]scenario{
		noRenewal:    {(*model).takenOver, budget{ticks: 6, writes: 2}},
		answerFirst:  {(*model).start, budget{ticks: 5, crashes: 1, writes: 2}},
		noFence:      {(*model).start, budget{ticks: 9, crashes: 1, writes: 2}},
		signOffFirst: {(*model).used, budget{ticks: 3, moves: 2, writes: 2}},
		wholeLease:   {(*model).start, budget{ticks: 9, pauses: 1}},
		anyFence:     {before(fences), budget{ticks: 3, faults: 1, delays: 1, writes: 2}},
	} {
		x := &model{most: 200_000, mutant: m}
		x.explore(s)
		testutil.True(t, x.broken != "", "mutant %d is not found", m)
	}
}

// TestModelPreempt: a write that a paused gateway has is not carried out after a preempt at another
// one, but may be answered then.
func TestModelPreempt(t *testing.T) {
	s := scenario{(*model).stopped, budget{ticks: 6, preempts: 1, writes: 1}}
	x := &model{most: 15_000}
	x.explore(s)
	testutil.True(t, x.broken == "", "%s", x.broken)
	x = &model{most: 100_000, mutant: noFence, only: "a write was carried out"}
	x.explore(s)
	testutil.True(t, x.broken != "", "it is not found without a fence")
}

// TestModelLong visits more states.
func TestModelLong(t *testing.T) {
	testutil.Soak(t, "it takes minutes and gigabytes")
	for i, s := range []scenario{
		{(*model).start, budget{ticks: 9, pauses: 1, writes: 2}},
		{(*model).start, budget{ticks: 9, pauses: 1, slips: 1, writes: 2}},
		{(*model).start, budget{ticks: 9, pauses: 1, crashes: 1, delays: 1, writes: 2}},
		{(*model).start, budget{ticks: 9, pauses: 1, drains: 1, strangers: 1, writes: 2}},
		{(*model).start, budget{ticks: 9, pauses: 1, evictions: 1, faults: 1, writes: 2}},
		{(*model).takenOver, budget{ticks: 9, pauses: 2, crashes: 1, faults: 1, writes: 2}},
		{(*model).takenOver, budget{ticks: 12, pauses: 2, slips: 1, strangers: 1, writes: 2}},
	} {
		x := &model{most: 1_000_000}
		all := x.explore(s)
		t.Logf("scenario %d: %d states, all: %v", i, len(x.queue), all)
		testutil.True(t, x.broken == "", "scenario %d: %s", i, x.broken)
	}
}
