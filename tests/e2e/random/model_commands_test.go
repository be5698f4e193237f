package random

import (
	"cmp"
	"encoding/binary"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
)

// modelCommand is a command, or a fused pair, with the results that the model expects.
type modelCommand struct {
	name  string
	c     int // controller
	queue int // of the controller; 0 is the admin queue
	slot  int // of the memory of the controller
	uses  []modelUse
	ops   []host.Op
	want  [2]nvme.Status
	check func() // called after success, before data is compared
	data  []byte // the data that the command returns
	got   []nvme.CQE
	ended [2]bool
	// reversed: the second command of the pair has completed first.
	reversed bool
}

// modelUse is an object that a command reads or changes: blocks of a namespace, its access rights,
// or state outside any namespace.
type modelUse struct {
	nsid     uint32 // 0: the notifications; from the highest down: the controllers
	state    bool
	from, to uint64
	write    bool
}

// conflicts reports whether the result of one of two commands depends on their order.
func (c *modelCommand) conflicts(o *modelCommand) bool {
	for _, a := range c.uses {
		for _, b := range o.uses {
			if a.nsid == b.nsid && a.state == b.state && (a.write || b.write) && a.from < b.to &&
				b.from < a.to {
				return true
			}
		}
	}
	return false
}

// blocks adds blocks that the command reads or writes.
func (c *modelCommand) blocks(ns *modelNamespace, slba uint64, n uint32, write bool) {
	c.uses = append(c.uses, modelUse{ns.nsid, false, slba, slba + uint64(n), write})
	c.state(ns, false)
}

func (c *modelCommand) state(ns *modelNamespace, write bool) {
	c.uses = append(c.uses, modelUse{ns.nsid, true, 0, 1, write})
}

func (c *modelCommand) notifications() {
	c.uses = append(c.uses, modelUse{0, true, 0, 1, true})
}

// modelKind is a kind of command with its weight. plan fills in the uses of a command. It returns a
// function that builds the command and changes the model, which is called if no other command has
// these uses.
type modelKind struct {
	name   string
	weight int
	admin  bool
	plan   func(x *modelRun, c *modelCommand) (build func())
}

var modelKinds = append([]modelKind{
	{"Read", 18, false, (*modelRun).read},
	{"Write", 20, false, (*modelRun).write},
	{"Write Zeroes", 6, false, (*modelRun).writeZeroes},
	{"Dataset Management", 6, false, (*modelRun).deallocate},
	{"Compare", 8, false, (*modelRun).compare},
	{"Compare and Write", 10, false, (*modelRun).pair},
	{"Copy", 10, false, (*modelRun).copy},
	{"Verify", 6, false, (*modelRun).verify},
	{"Write Uncorrectable", 4, false, (*modelRun).writeUncorrectable},
	{"Flush", 3, false, (*modelRun).flush},
	{"Get Features", 1, true, (*modelRun).getFeature},
	{"Identify", 1, true, (*modelRun).identify},
	{"Set Features", 2, true, (*modelRun).setFeature},
}, modelReservationKinds...)

var modelReservationKinds = []modelKind{
	{"Reservation Register", 4, false, (*modelRun).register},
	{"Reservation Acquire", 4, false, (*modelRun).acquire},
	{"Reservation Release", 4, false, (*modelRun).release},
	{"Reservation Report", 2, false, (*modelRun).report},
}

// somewhere returns random blocks of a namespace, often ones that others use as well, sometimes
// beyond its end.
func (x *modelRun) somewhere() (ns *modelNamespace, slba uint64, n uint32) {
	ns = x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
	n = 1 + x.rnd.Uint32N(8)
	if x.rnd.IntN(12) == 0 {
		n = 1 + x.rnd.Uint32N(uint32(modelTransfer/ns.blockSize))
	}
	switch x.rnd.IntN(16) {
	case 0, 1: // the last blocks, and a few more
		slba = ns.blocks - uint64(n) + x.rnd.Uint64N(3)
	case 2:
		slba = x.rnd.Uint64() >> x.rnd.IntN(64)
	case 3, 4, 5, 6, 7:
		slba = x.rnd.Uint64N(ns.blocks)
	default:
		slba = x.rnd.Uint64N(48)
	}
	if slba > 1<<63 { // also for the sums of the model
		slba = ns.blocks
	}
	return ns, slba, n
}

// random fills memory of a command with new data.
func (x *modelRun) random(b []byte) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], x.rnd.Uint64())
	}
}

func (x *modelRun) flags() (f nvme.RWFlags) {
	if x.rnd.IntN(16) == 0 {
		f = nvme.RWFUA
	}
	return f
}

func (x *modelRun) read(c *modelCommand) func() {
	ns, slba, n := x.somewhere()
	c.blocks(ns, slba, n, false)
	return func() {
		buf := x.memory(c, int(n)*ns.blockSize)
		c.add().Read(ns.nsid, slba, n, buf)
		if c.want[0] = x.m.reads(c.c, ns, slba, n); c.want[0].OK() {
			c.data = ns.at(slba, n)
			for i, b := range c.data {
				buf[i] = ^b
			}
		}
	}
}

func (x *modelRun) write(c *modelCommand) func() {
	ns, slba, n := x.somewhere()
	c.blocks(ns, slba, n, true)
	return func() {
		buf := x.memory(c, int(n)*ns.blockSize)
		x.random(buf)
		c.add().Write(ns.nsid, slba, n, buf, x.flags())
		if c.want[0] = x.m.io(c.c, ns, slba, n, true); c.want[0].OK() {
			copy(ns.overwrite(slba, n), buf)
		}
	}
}

// writeUncorrectable marks some blocks, unless that would exceed the maximum number of marks.
func (x *modelRun) writeUncorrectable(c *modelCommand) func() {
	ns, slba, n := x.somewhere()
	c.blocks(ns, slba, n, true)
	return func() {
		op := c.add()
		op.SQE.SetOpcode(nvme.NVMWriteUncorrectable)
		op.SQE.SetNSID(ns.nsid)
		op.SQE.RW().Set(slba, n, 0)
		if c.want[0] = x.m.io(c.c, ns, slba, n, true); c.want[0].OK() {
			ns.Mark(slba, n)
		}
	}
}

func (x *modelRun) writeZeroes(c *modelCommand) func() {
	ns, slba, n := x.somewhere()
	c.blocks(ns, slba, n, true)
	return func() {
		flags := x.flags()
		if x.rnd.IntN(2) == 0 {
			flags |= nvme.RWDeallocate
		}
		hosttest.SetWriteZeroes(c.add(), ns.nsid, slba, n, flags)
		if c.want[0] = x.m.io(c.c, ns, slba, n, true); c.want[0].OK() {
			clear(ns.overwrite(slba, n))
		}
	}
}

// deallocate relies on DLFEAT: deallocated blocks read as zeroes.
func (x *modelRun) deallocate(c *modelCommand) func() {
	var ranges []modelCopyRange
	ns, slba, n := x.somewhere()
	for range 1 + x.rnd.IntN(4) {
		if x.rnd.IntN(8) == 0 {
			n = 0
		}
		ranges = append(ranges, modelCopyRange{ns, slba, n})
		c.blocks(ns, slba, n, true)
		slba, n = x.rnd.Uint64N(ns.blocks), 1+x.rnd.Uint32N(16)
		if slba+uint64(n) > ns.blocks && x.rnd.IntN(4) > 0 {
			slba, n = ns.blocks-1, 1
		}
	}
	return func() {
		buf := x.memory(c, len(ranges)*nvme.DSMRangeSize)
		for i, r := range ranges {
			(*nvme.DSMRange)(buf[i*nvme.DSMRangeSize:]).Set(r.slba, r.n)
		}
		op, st := c.add(), x.m.refusal(c.c, ns, true)
		hosttest.SetDiscard(op, ns.nsid, buf)
		hint := x.rnd.IntN(8) == 0
		if op.SQE.DSM().Set(len(ranges), !hint); st.OK() && !hint {
			st = ns.writable()
		}
		for _, r := range ranges {
			if st.OK() && r.n > 0 {
				st = ns.within(r.slba, r.n)
			}
		}
		if c.want[0] = st; !st.OK() || hint {
			return
		}
		for _, r := range ranges {
			if r.n > 0 {
				clear(ns.at(r.slba, r.n))
			}
		}
	}
}

// expected fills memory with the content of some blocks, or with something else. It reports whether
// the content is equal.
func (x *modelRun) expected(buf []byte, ns *modelNamespace, slba uint64, n uint32) (equal bool) {
	if !ns.within(slba, n).OK() {
		return true
	}
	copy(buf, ns.at(slba, n))
	if x.rnd.IntN(3) == 0 {
		buf[x.rnd.IntN(len(buf))] ^= 1 << x.rnd.IntN(8)
		return false
	}
	return true
}

func (x *modelRun) compare(c *modelCommand) func() {
	ns, slba, n := x.somewhere()
	c.blocks(ns, slba, n, false)
	return func() {
		buf := x.memory(c, int(n)*ns.blockSize)
		equal := x.expected(buf, ns, slba, n)
		if ns.Marked(slba, n) && ns.within(slba, n).OK() {
			copy(buf, ns.at(slba, n)) // so that the order of checks does not matter
		}
		hosttest.SetCompare(c.add(), ns.nsid, slba, n, buf)
		if c.want[0] = x.m.reads(c.c, ns, slba, n); c.want[0].OK() && !equal {
			c.want[0] = nvme.CompareFailure | dnr
		}
	}
}

func (x *modelRun) pair(c *modelCommand) func() {
	ns, slba, n := x.somewhere()
	if n > ns.atomic && x.rnd.IntN(8) > 0 {
		n = ns.atomic
	}
	first := modelCopyRange{ns, slba, n}
	second := first
	switch x.rnd.IntN(32) {
	case 0:
		second.slba ^= 1
	case 1:
		second.n++
	case 2:
		if n <= 8 {
			second.ns = x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
		}
	}
	c.blocks(ns, slba, n, true)
	c.blocks(second.ns, second.slba, second.n, true)
	return func() {
		old := x.memory(c, int(n)*ns.blockSize)
		equal := x.expected(old, ns, slba, n)
		hosttest.SetCompare(c.add(), ns.nsid, slba, n, old)
		buf := x.memory(c, int(second.n)*second.ns.blockSize)
		x.random(buf)
		c.add().Write(second.ns.nsid, second.slba, second.n, buf, x.flags())
		c.ops[0].SQE.SetFlags(1)
		c.ops[1].SQE.SetFlags(2)
		c.want = x.m.pairStatus(c.c, first, second, equal)
		if c.want[1].OK() {
			copy(ns.overwrite(slba, n), buf)
		}
	}
}

func (x *modelRun) copy(c *modelCommand) func() {
	to, sdlba, _ := x.somewhere()
	between := x.rnd.IntN(2) == 0
	var from []modelCopyRange
	total := uint32(0)
	for range 1 + x.rnd.IntN(5) {
		r := modelCopyRange{ns: to, n: 1 + x.rnd.Uint32N(12)}
		if x.rnd.IntN(32) == 0 {
			r.n = 1 + x.rnd.Uint32N(uint32(modelTransfer/to.blockSize))
		}
		if between && x.rnd.IntN(2) == 0 {
			r.ns = x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
			if r.ns.blockSize != to.blockSize && x.rnd.IntN(8) > 0 {
				r.ns = to
			}
		}
		if r.slba = x.rnd.Uint64N(r.ns.blocks); x.rnd.IntN(16) > 0 {
			r.slba = x.rnd.Uint64N(max(r.ns.blocks-uint64(r.n), 1))
		}
		c.blocks(r.ns, r.slba, r.n, false)
		if between && x.rnd.IntN(64) == 0 {
			r.ns = nil
		}
		from = append(from, r)
		total += r.n
	}
	for _, r := range from {
		if r.ns != nil && r.ns.Marked(r.slba, r.n) {
			for !r.ns.Marked(r.slba, 1) {
				r.slba++
			}
			r.n = 1 // otherwise some may be copied before the error
			from, total = []modelCopyRange{r}, 1
			break
		}
	}
	if end := sdlba + uint64(total); end > to.blocks && x.rnd.IntN(8) > 0 {
		sdlba = to.blocks - min(uint64(total), to.blocks)
	}
	c.blocks(to, sdlba, total, true)
	return func() { x.buildCopy(c, to, sdlba, from, between) }
}

func (x *modelRun) buildCopy(c *modelCommand, to *modelNamespace, sdlba uint64,
	from []modelCopyRange, between bool,
) {
	buf := x.memory(c, len(from)*nvme.CopyRangeSize)
	format := nvme.CopyRanges
	if between {
		format = nvme.CopyNamespaces
	}
	for i, r := range from {
		nsid := uint32(0)
		switch {
		case r.ns == nil:
			nsid = modelInactive
		case between:
			nsid = r.ns.nsid
		}
		(*nvme.CopyRange)(buf[i*nvme.CopyRangeSize:]).Set(nsid, r.slba, r.n)
	}
	hosttest.SetCopy(c.add(), to.nsid, sdlba, format, buf, x.flags())
	c.want[0] = x.m.copyStatus(c.c, to, sdlba, from, between, x.hosts[c.c].between)
	if c.want[0].OK() && from[0].ns.Marked(from[0].slba, from[0].n) {
		c.want[0] = nvme.UnrecoveredReadError | dnr
	}
	if !c.want[0].OK() {
		return
	}
	var data []byte
	for _, r := range from {
		data = append(data, r.ns.at(r.slba, r.n)...)
	}
	copy(to.overwrite(sdlba, uint32(len(data)/to.blockSize)), data)
}

func (x *modelRun) verify(c *modelCommand) func() {
	ns, slba, n := x.somewhere()
	c.blocks(ns, slba, n, false)
	return func() {
		hosttest.SetVerify(c.add(), ns.nsid, slba, n)
		c.want[0] = x.m.reads(c.c, ns, slba, n)
	}
}

func (x *modelRun) flush(c *modelCommand) func() {
	list := x.m.namespaces
	nsid := nvme.NSIDAll
	if i := x.rnd.IntN(len(list) + 1); i < len(list) {
		list = list[i : i+1]
		nsid = list[0].nsid
	}
	for _, ns := range list {
		c.state(ns, false)
	}
	return func() {
		c.add().Flush(nsid)
		if nsid != nvme.NSIDAll {
			c.want[0] = x.m.refusal(c.c, list[0], true)
			return
		}
		c.want[0] = x.m.anyPath(c.c)
		for _, ns := range list {
			if !ns.hidden[x.m.hosts[c.c]] {
				c.want[0] = cmp.Or(c.want[0], x.m.refusal(c.c, ns, true))
			}
		}
	}
}

// add adds a command to send.
func (c *modelCommand) add() *host.Op {
	c.ops = append(c.ops, host.Op{})
	return &c.ops[len(c.ops)-1]
}

// differs describes a wrong result of a completed command other than its status.
func (c *modelCommand) differs() string {
	if st := c.status(0); c.reversed && (st.OK() || st == nvme.CompareFailure|dnr) {
		return "the Write of the pair has completed before the Compare"
	}
	if c.data == nil || !c.status(0).OK() {
		return ""
	}
	return e2e.Differ(c.ops[0].Data, c.data)
}
