package load

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// Stream is one queue with its workload.
type Stream struct {
	w           *Workload
	queue       *host.Queue
	nsid        uint32
	number      int // in the load
	rng         *rand.Rand
	block       int    // bytes
	unit        uint32 // blocks from one place to the next
	start       uint64 // first block
	places      uint64 // possible starts of an I/O
	next        uint64 // place of the next sequential I/O
	order       permutation
	begun       uint64 // I/Os
	limit       uint64 // of I/Os
	pass        uint64
	wrote       bool // the pass has written; the next one reads the I/Os that it began
	reads       int  // percent
	left        int  // I/Os of the current burst still to be submitted
	flushing    bool
	flushBegan  time.Time
	op          host.Op
	slots       []slot
	idle        []int // slots
	outstanding int
	ready       time.Time     // of the next submission
	interval    time.Duration // between the times at which I/Os are due; 0: no rate
	due         time.Time
	done        []host.Completion
	emptyPolls  uint // polls without a completion
	timeout     time.Duration
	progress    time.Time // of the last completion
	counted     *Outcome
}

// slot is an I/O.
type slot struct {
	memory []byte
	began  time.Time
	block  uint64
	size   int
	kind   Kind
}

// init prepares a stream for its part of nsze blocks.
func (s *Stream) init(nsze uint64, index int, memory []byte) error {
	w := s.w
	s.rng = rand.New(rand.NewPCG(w.Seed+1, uint64(s.number)))
	s.reads, s.left, s.limit = w.Reads, w.Burst, unlimited
	s.done = make([]host.Completion, w.Depth)
	block, largest, smallest := uint64(s.block), w.largest(), w.smallest()
	for _, n := range []int{w.Size, smallest, largest} {
		if n <= 0 || n%s.block != 0 {
			return fmt.Errorf("I/Os of %d bytes: must be a multiple of the block size, %d bytes", n,
				s.block)
		}
	}
	s.unit = uint32(smallest / s.block)
	length := w.Length
	if size := nsze * block; w.Offset >= size || length > size-w.Offset {
		return fmt.Errorf("%d bytes at offset %d: the namespace has %d", length, w.Offset, size)
	} else if length == 0 {
		length = size - w.Offset
	}
	parts := w.Parts || w.once()
	if parts {
		length /= uint64(w.Queues)
	}
	if length/uint64(smallest)*uint64(smallest) < uint64(largest) {
		return fmt.Errorf("%d bytes for a queue, and I/Os of %d: make the range (size) larger",
			length, largest)
	}
	s.places = (length-uint64(largest))/uint64(smallest) + 1
	s.start = w.Offset / block
	if parts {
		s.start += length / uint64(smallest) * uint64(s.unit) * uint64(index)
	} else {
		s.next = s.places / uint64(w.Queues) * uint64(index)
	}
	if w.once() {
		s.limit, s.order = s.places, newPermutation(s.places, w.Seed+uint64(index))
	}
	if w.Rate > 0 {
		s.interval = time.Duration(float64(w.Queues) / w.Rate * 1e9)
	}
	for i := range min(w.Depth, s.queue.Depth()) {
		s.slots = append(s.slots, slot{memory: memory[i*largest : (i+1)*largest]})
		s.idle = append(s.idle, i)
	}
	return nil
}

func (s *Stream) Workload() *Workload { return s.w }

// startPass begins to write or read each place; see Load.Pass.
func (s *Stream) startPass(pass uint64, write bool) {
	if write {
		s.limit, s.reads, s.wrote = s.places, 0, true
	} else {
		s.reads = 100
		if s.wrote {
			s.limit = s.begun
		}
	}
	s.pass, s.begun, s.next = pass, 0, 0
}

// begin prepares a run that starts now.
func (s *Stream) begin(now time.Time, o *Outcome) {
	s.counted, s.progress = o, now
	s.due = now.Add(s.interval * time.Duration(s.number%s.w.Queues) / time.Duration(s.w.Queues))
}

// end counts the I/Os that were due in a run until now and have not begun.
func (s *Stream) end(now time.Time) {
	if s.interval > 0 && s.due.Before(now) && !s.exhausted() {
		s.counted.Late += uint64(now.Sub(s.due)/s.interval) + 1
	}
}

// timed reports whether the stream may have to wait without outstanding I/O.
func (s *Stream) timed() bool { return s.interval > 0 || s.w.Think > 0 }

// wake returns the time at which a stream without outstanding I/O has work again.
func (s *Stream) wake() time.Time {
	if s.interval > 0 && s.due.After(s.ready) {
		return s.due
	}
	return s.ready
}

func (s *Stream) exhausted() bool { return s.begun >= s.limit }

// flushToken is the token of a flush; the tokens of other commands are slots.
const flushToken = ^uint64(0)

// submit fills the queue up to the depth of the workload. now is the start time of the I/Os.
func (s *Stream) submit(now time.Time) error {
	if s.w.Burst > 0 && s.left == 0 {
		if s.outstanding > 0 {
			return nil
		}
		s.op.Flush(s.nsid)
		s.op.Data, s.op.Token = nil, flushToken
		s.left, s.flushing, s.flushBegan = s.w.Burst, true, now
		s.outstanding, s.progress = 1, now
		_, err := s.queue.Submit(&s.op)
		return err
	}
	if now.Before(s.ready) {
		return nil
	}
	for len(s.idle) > 0 && !s.flushing && (s.w.Burst == 0 || s.left > 0) && !s.exhausted() {
		began := now
		if s.interval > 0 {
			if s.due.After(now) {
				return nil
			}
			began = s.due
		}
		i := s.idle[len(s.idle)-1]
		s.build(&s.slots[i])
		s.op.Token = uint64(i)
		if _, err := s.queue.Submit(&s.op); err != nil {
			return err
		}
		if s.outstanding == 0 {
			s.progress = now
		}
		s.idle = s.idle[:len(s.idle)-1]
		s.slots[i].began = began
		s.due = s.due.Add(s.interval)
		s.outstanding++
		s.begun++
		s.left--
	}
	return nil
}

// build makes the next command in o.
func (s *Stream) build(o *slot) {
	o.size = s.size()
	o.block = s.start + s.place()*uint64(s.unit)
	data, blocks := o.memory[:o.size], uint32(o.size/s.block)
	if s.reads == 100 || s.reads > 0 && s.rng.IntN(100) < s.reads {
		o.kind = Read
		if s.w.Verify {
			clear(data) // a target that sends nothing must not find the written data here
		}
		s.op.Read(s.nsid, o.block, blocks, data)
		return
	}
	o.kind = Write
	if s.w.Verify {
		fill(data, s.block, s.w.Seed, o.block, s.pass)
	}
	s.op.Write(s.nsid, o.block, blocks, data, 0)
}

// size returns the size of the next I/O in bytes.
func (s *Stream) size() int {
	if len(s.w.Sizes) == 0 {
		return s.w.Size
	}
	n := s.rng.IntN(100)
	for _, share := range s.w.Sizes {
		if n -= share.Percent; n < 0 {
			return share.Size
		}
	}
	return s.w.Size
}

// place returns the place of the next I/O.
func (s *Stream) place() uint64 {
	switch {
	case s.w.Sequential:
		p := s.next
		if s.next++; s.next == s.places {
			s.next = 0
		}
		return p
	case s.w.once():
		return s.order.at(s.begun)
	}
	return s.rng.Uint64N(s.places)
}

// clockEvery is the number of polls without a completion that share one reading of the clock.
const clockEvery = 64

// poll counts completions and returns the time. Without completions the time may be a few polls
// old. before is the last result of poll. over may be nil.
func (s *Stream) poll(before time.Time, over *Series) (now time.Time, err error) {
	n, err := s.queue.Poll(s.done)
	now = before
	if s.emptyPolls++; n > 0 || s.emptyPolls%clockEvery == 0 {
		now = time.Now()
	}
	if err != nil {
		return now, fmt.Errorf("%s: %w", s.w.Name, err)
	}
	if n == 0 {
		if s.timeout > 0 && now.Sub(s.progress) > s.timeout {
			return now, fmt.Errorf("%s: no answer for %v, with %d commands outstanding", s.w.Name,
				s.timeout, s.outstanding)
		}
		return now, nil
	}
	s.progress = now
	bytes := 0
	for i := range s.done[:n] {
		size, err := s.completed(&s.done[i], now, over)
		if err != nil {
			return now, fmt.Errorf("%s: %w", s.w.Name, err)
		}
		bytes += size
	}
	if over != nil { // only this thread writes
		over.Ops.Store(over.Ops.Load() + uint64(n))
		over.Bytes.Store(over.Bytes.Load() + uint64(bytes))
	}
	return now, nil
}

// completed counts a completion and returns its size in bytes.
func (s *Stream) completed(c *host.Completion, now time.Time, over *Series) (size int, err error) {
	s.outstanding--
	s.ready = now.Add(s.w.Think)
	if c.Token == flushToken {
		if !c.Status().OK() {
			return 0, fmt.Errorf("flush: %w", c.Status())
		}
		s.flushing = false
		s.counted.add(Flush, 0, now.Sub(s.flushBegan))
		return 0, nil
	}
	o := &s.slots[c.Token]
	if !c.Status().OK() {
		return 0, fmt.Errorf("%s of %d bytes at block %d: %w", [...]string{"read", "write"}[o.kind],
			o.size, o.block, c.Status())
	}
	latency := now.Sub(o.began)
	s.counted.add(o.kind, o.size, latency)
	if over != nil {
		cell := over.at(now)
		cell.Bytes[o.kind] += uint64(o.size)
		cell.Latency.Add(int64(latency))
	}
	if s.w.Verify && o.kind == Read {
		err = compare(o.memory[:o.size], s.block, s.w.Seed, o.block, s.pass)
	}
	s.idle = append(s.idle, int(c.Token))
	return o.size, err
}
