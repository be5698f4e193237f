package compound

import (
	"bytes"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	// Chunk is how much a command reads at a time into memory of the target, in bytes.
	Chunk = int64(128 << 10)
	// readWidth is how many such IOs of one command devices have at a time, if their turns come.
	readWidth = 4
)

// Read is the part of a compound that reads into memory of the target. The memory is of the share
// of the host, and is waited for if there is none.
type Read struct {
	From []Extent
	Then Then
	// Flow is where the memory comes from. Reserve: the command has memory of a transport, and may
	// use the reserve of the pool.
	Flow    *mem.Flow
	Reserve bool
	// Data is the data of the command, for Compare. The caller keeps it until the command is
	// completed.
	Data []mem.Segment
	// To is the first byte that Copy writes.
	To int64
	// Flags are the flags of writes.
	Flags backend.Flags
	// Second is the Write of a pair, and Overwrite its data. Lock keeps others from the blocks of
	// the pair.
	Second    Command
	Overwrite []mem.Segment
	Lock      Lock

	m *Compound
	// index and pos are where the next chunk is read: an extent, and how far into it, in bytes.
	index   int
	pos     int64
	done    int64 // bytes of all extents before
	failed  int   // Copy: the first extent that was not copied
	writing bool  // the first command of the pair has succeeded
}

// Then is the step after a chunk has been read.
type Then uint8

// The steps.
const (
	Verify          Then = iota // nothing
	Compare                     // it is compared with the data of the command
	CompareAndWrite             // and then overwritten with that of the second one
	Copy                        // it is written elsewhere
)

// Extent is a range of bytes of a namespace.
type Extent struct {
	Channel  Channel
	Off, Len int64
}

// Lock keeps others from changing blocks.
type Lock interface {
	// Acquire begins to acquire the lock at the first call, and reports whether it is held.
	// Read.GoOn is called when it is.
	Acquire() bool
	// Release ends the lock, or the wait for it.
	Release()
}

// Read begins to read. ch is the channel of the command's namespace. The compound takes turns in
// flow, unless that is nil.
func (m *Compound) Read(ch Channel, flow *Flow, v *Read) {
	m.ch, m.flow, m.read = ch, flow, v
	v.m, v.failed = m, len(v.From)
	for _, x := range v.From {
		m.steps += int((x.Len + Chunk - 1) / Chunk)
	}
	m.Since = m.pool.Now()
	m.pool.reads++
	m.advance()
}

// Waits reports whether the compound waits for memory or a lock while devices have nothing.
func (m *Compound) Waits() bool { return m.read != nil && m.outstanding == 0 }

// readReady reports whether the next chunk can be read into the memory of o. If not, advance is
// called when it can. A pair acquires its lock when it has memory, so that other commands do not
// wait until its host has memory.
func (m *Compound) readReady(o *IO) bool {
	return m.hasMemory(o) && (m.read.Lock == nil || m.read.Lock.Acquire())
}

// hasMemory reports whether o has memory for the next chunk. If not, and no outstanding IO would
// give some back, it waits. A command with data has memory of a transport meanwhile, so its wait
// may have the reserve: otherwise many of them would wait for one another.
func (m *Compound) hasMemory(o *IO) bool {
	v, p := m.read, m.pool
	n := int(v.chunk())
	switch {
	case len(o.data.Segs) > 0 || p.Memory.Alloc(&o.data, v.Flow, n): // Granted, or now
		return true
	case m.outstanding > 0:
		return false
	case v.Reserve && p.Memory.AllocReserve(&o.data, v.Flow, n):
		return true
	}
	o.data.Owner = o
	if v.Reserve {
		p.Memory.WaitReserve(&o.data, v.Flow, n, p.Now())
	} else {
		p.Memory.Wait(&o.data, v.Flow, n, p.Now())
	}
	return false
}

// Granted implements mem.WaitOwner. The pool of memory must not be called from here.
func (o *IO) Granted() { o.Compound.pool.Post(o.Compound.read.GoOn) }

// Expired implements mem.WaitOwner.
func (o *IO) Expired() {
	o.Compound.status = nvme.CommandInterrupted // hosts retry (Base section 4.2.3.1)
	o.Compound.pool.Post(o.Compound.read.GoOn)
}

// GoOn goes on with a compound that has waited for memory or for its lock, unless it has ended.
func (v *Read) GoOn() {
	if v.m.read == v {
		v.m.advance()
	}
}

// chunk is the length of the next one.
func (v *Read) chunk() int64 { return min(v.From[v.index].Len-v.pos, Chunk) }

// fill prepares the read of the next chunk.
func (v *Read) fill(o *IO) Channel {
	x := &v.From[v.index]
	o.Op, o.Flags, o.Off, o.Len, o.Segs = backend.OpRead, 0, x.Off+v.pos, v.chunk(), o.data.Segs
	o.pos, o.extent = v.done, v.index
	v.pos += o.Len
	v.done += o.Len
	if v.pos == x.Len {
		v.index, v.pos = v.index+1, 0
	}
	return x.Channel
}

// goesOn carries on with a chunk that was read, or returns false if the IO is finished.
func (m *Compound) goesOn(o *IO) bool {
	v := m.read
	switch {
	case !m.status.OK():
		return false
	case m.Command.Over(): // a late write must not follow
		m.status = nvme.AbortedSQDeletion
		return false
	case v.Then == Copy:
		return m.write(o, v.To+o.pos)
	case !equal(v.Data, int(o.pos), o.Segs):
		m.status = nvme.CompareFailure | nvme.DNR
		return false
	case v.Then == Compare:
		return false
	}
	v.writing = true
	mem.CopySegments(o.Segs, v.Overwrite)
	return m.write(o, o.Off)
}

// write makes an IO write the data in its memory. It reports whether that was possible.
func (m *Compound) write(o *IO, off int64) bool {
	o.Op, o.Flags, o.Off = backend.OpWrite, m.read.Flags, off
	st := m.submit(m.ch, o)
	if !st.OK() {
		m.status, o.Op = st, backend.OpRead
	}
	return st.OK()
}

// equal reports whether a has the data of b from a position on.
func equal(a []mem.Segment, pos int, b []mem.Segment) bool {
	have := mem.NewCursor(a, pos)
	for i := range b {
		for rest := b[i].B; len(rest) > 0; {
			p := have.Next(len(rest))
			if len(p) == 0 || !bytes.Equal(p, rest[:len(p)]) {
				return false
			}
			rest = rest[len(p):]
		}
	}
	return true
}

// endRead frees the memory and the lock. The IOs are back.
func (m *Compound) endRead() {
	for i := range m.ios {
		m.ios[i].data.Cancel()
		m.ios[i].data.Free()
	}
	if l := m.read.Lock; l != nil {
		l.Release()
	}
	m.read = nil
	m.pool.reads--
}

// result is DW0 of a failed command: of a Copy the first range not copied (NVM section 3.3.2).
func (v *Read) result() uint64 {
	if v.Then != Copy {
		return 0
	}
	return uint64(min(v.failed, v.index))
}

// statuses returns the statuses of the two commands of a pair that ends with st. If the first
// fails, the second fails as well (Base section 3.4.2).
func (v *Read) statuses(st nvme.Status) (first, second nvme.Status) {
	switch {
	case st.OK(), st == NotReady, st == nvme.AbortRequested,
		st == nvme.AbortedPreempt:
		return st, st
	case v.writing:
		return nvme.Success, st
	}
	return st, nvme.AbortedFailedFused
}
