package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// queuesPerController is the default limit of the target.
const queuesPerController = 128

// load runs workloads, with all queues on one thread.
type load struct {
	controllers []*host.Controller
	streams     []*stream
	idle        []*host.Queue
}

// outcome is the result of a measurement.
type outcome struct {
	ops     uint64
	elapsed time.Duration
	latency histogram.Histogram
}

func (o *outcome) figures() figures {
	f := figures{"iops": float64(o.ops) / o.elapsed.Seconds()}
	f.quantiles(&o.latency)
	return f
}

// quantiles adds the quantiles of a latency.
func (f figures) quantiles(h *histogram.Histogram) {
	quantiles := map[string]float64{"p50_us": 0.5, "p99_us": 0.99, "p99.9_us": 0.999, "max_us": 1}
	for name, q := range quantiles {
		f[name] = float64(h.Quantile(q)) / 1e3
	}
}

// add connects and adds the queues of w.
func (l *load) add(ctx context.Context, t host.Transport, nqn string, w workload) error {
	for opened := 0; opened < w.queues+w.connected; {
		c, err := connect(ctx, t, nqn)
		if err != nil {
			return err
		}
		l.controllers = append(l.controllers, c)
		n := min(w.queues+w.connected-opened, queuesPerController)
		if granted, err := c.SetQueueCount(ctx, n); err != nil || granted < n {
			return errors.Join(fmt.Errorf("%d of %d queues granted", granted, n), err)
		}
		for qid := range n {
			if opened++; opened <= w.queues {
				err = l.open(ctx, c, uint16(qid+1), w)
			} else {
				var q *host.Queue
				if q, err = c.OpenQueue(ctx, uint16(qid+1), 2); err == nil {
					l.idle = append(l.idle, q)
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// open opens a queue that runs w.
func (l *load) open(ctx context.Context, c *host.Controller, qid uint16, w workload) error {
	ns, err := c.IdentifyNamespace(ctx, 1)
	if err != nil {
		return err
	}
	memory, err := c.Map(w.depth * w.size)
	if err != nil {
		return err
	}
	populate(memory)
	// One entry of a queue stays unused.
	q, err := c.OpenQueue(ctx, qid, max(2, min(w.depth+1, int(c.CAP().MQES())+1)))
	if err != nil {
		return err
	}
	l.streams = append(l.streams,
		newStream(w, q, len(l.streams), 1<<ns.Format().LBADS, ns.NSZE, memory))
	return nil
}

const hostNQN = "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5"

// connect connects to the target, and waits until it listens.
func connect(ctx context.Context, t host.Transport, nqn string) (*host.Controller, error) {
	o := host.Options{HostNQN: hostNQN, HostID: [16]byte{15: 1}, SubNQN: nqn}
	for {
		c, err := host.Connect(ctx, t, o)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the target: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// aloneTurn is the turn of a load with only one queue: as much as the socket accepts, as for the
// floor.
const aloneTurn = 16 << 20

func newLoad(t host.Transport, nqn string, list ...workload) (*load, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if tcp, ok := t.(host.TCP); ok && len(list) == 1 && list[0].queues == 1 {
		tcp.Turn = aloneTurn
		t = tcp
	}
	l := &load{}
	for _, w := range list {
		if err := l.add(ctx, t, nqn, w); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

func (l *load) close() {
	for _, s := range l.streams {
		_ = s.queue.Close()
	}
	for _, q := range l.idle {
		_ = q.Close()
	}
	for _, c := range l.controllers {
		c.Close()
	}
}

// run keeps the queues full for d, and then waits for the I/Os in flight. It counts completions of
// each stream in the outcome that count returns for it.
func (l *load) run(d time.Duration, count func(*stream) *outcome) error {
	counted := make([]*outcome, len(l.streams))
	for i, s := range l.streams {
		counted[i] = count(s)
	}
	start := time.Now()
	now, deadline := start, start.Add(d)
	for busy := true; busy; {
		busy = false
		for i, s := range l.streams {
			if len(l.streams) > 1 && len(s.idle) > 0 {
				now = time.Now() // other streams have used time
			}
			if now.Before(deadline) {
				busy = true
				if err := s.submit(now); err != nil {
					return err
				}
			}
			if s.outstanding == 0 {
				continue
			}
			busy = true
			var err error
			if now, err = s.poll(counted[i], now); err != nil {
				return err
			}
		}
	}
	for _, o := range counted {
		o.elapsed = time.Since(start)
	}
	return nil
}

// stream is one queue with its workload.
type stream struct {
	w           workload
	queue       *host.Queue
	rng         *rand.Rand
	blocks      uint32 // of an I/O
	places      uint64 // of an I/O in the namespace
	next        uint64 // place of the next sequential I/O
	left        int    // I/Os of the current burst still to be submitted
	flushing    bool
	op          host.Op
	data        [][]byte    // per slot
	began       []time.Time // per slot
	idle        []int       // slots
	outstanding int
	ready       time.Time // of the next submission
	done        []host.Completion
	emptyPolls  uint // polls without a completion
}

func newStream(w workload, q *host.Queue, index, block int, nsze uint64, memory []byte) *stream {
	s := &stream{
		w: w, queue: q, rng: rand.New(rand.NewPCG(1, uint64(index))),
		blocks: uint32(w.size / block), left: w.burst,
		done: make([]host.Completion, w.depth),
	}
	s.places = nsze / uint64(s.blocks)
	// Sequential queues start at evenly distributed places.
	s.next = s.places / uint64(w.queues) * uint64(index%w.queues)
	for i := range min(w.depth, q.Depth()) {
		s.data = append(s.data, memory[i*w.size:(i+1)*w.size])
		s.idle = append(s.idle, i)
	}
	s.began = make([]time.Time, len(s.data))
	return s
}

// flushToken is the token of a flush; those of others are slots.
const flushToken = ^uint64(0)

// submit fills the queue up to the depth of the workload. now is the start time of the I/Os.
func (s *stream) submit(now time.Time) error {
	if s.w.burst > 0 && s.left == 0 {
		if s.outstanding > 0 {
			return nil
		}
		s.op.Flush(1)
		s.op.Data, s.op.Token = nil, flushToken
		s.left, s.flushing = s.w.burst, true
		s.outstanding++
		_, err := s.queue.Submit(&s.op)
		return err
	}
	if now.Before(s.ready) {
		return nil
	}
	for len(s.idle) > 0 && !s.flushing && (s.w.burst == 0 || s.left > 0) {
		slot := s.idle[len(s.idle)-1]
		if s.w.reads == 100 || s.w.reads > 0 && s.rng.IntN(100) < s.w.reads {
			s.op.Read(1, s.place(), s.blocks, s.data[slot])
		} else {
			s.op.Write(1, s.place(), s.blocks, s.data[slot], 0)
		}
		s.op.Token = uint64(slot)
		if _, err := s.queue.Submit(&s.op); err == host.ErrFull {
			return nil
		} else if err != nil {
			return err
		}
		s.idle = s.idle[:len(s.idle)-1]
		s.began[slot] = now
		s.outstanding++
		s.left--
	}
	return nil
}

// place is the first block of the next I/O.
func (s *stream) place() uint64 {
	if !s.w.sequential {
		return s.rng.Uint64N(s.places) * uint64(s.blocks)
	}
	p := s.next
	if s.next++; s.next == s.places {
		s.next = 0
	}
	return p * uint64(s.blocks)
}

// clockEvery is the number of polls without a completion that share one reading of the clock.
const clockEvery = 64

// poll counts completions and returns the time, which is a few polls old if there are none. before
// is the time that it returned last.
func (s *stream) poll(o *outcome, before time.Time) (now time.Time, err error) {
	n, err := s.queue.Poll(s.done)
	now = before
	if s.emptyPolls++; n > 0 || s.emptyPolls%clockEvery == 0 {
		now = time.Now()
	}
	if err != nil {
		return now, fmt.Errorf("%s: %w", s.w.name, err)
	}
	for i := range s.done[:n] {
		c := &s.done[i]
		if !c.Status().OK() {
			return now, fmt.Errorf("%s: %w", s.w.name, c.Status())
		}
		s.outstanding--
		s.ready = now.Add(s.w.think)
		if c.Token == flushToken {
			s.flushing = false
			continue
		}
		o.ops++
		o.latency.Add(int64(now.Sub(s.began[c.Token])))
		s.idle = append(s.idle, int(c.Token))
	}
	return now, nil
}

// fillTarget writes the whole namespace once, so that reads find real data.
func fillTarget(t host.Transport) error {
	const size = 128 << 10
	l, err := newLoad(t, benchNQN, workload{size: size, depth: 1, queues: 1})
	if err != nil {
		return err
	}
	defer l.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := l.streams[0]
	for i := range s.data[0] {
		s.data[0][i] = byte(i * 7)
	}
	for p := range s.places {
		if err := s.queue.Write(ctx, 1, p*uint64(s.blocks), s.blocks, s.data[0], 0); err != nil {
			return fmt.Errorf("fill block %d: %w", p*uint64(s.blocks), err)
		}
	}
	return nil
}
