package observe

import (
	"context"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Recorder is the flight recorder of a queue. Reactor only.
type Recorder struct {
	Ring          // it starts when the host is known to be allowed
	Queue   Queue // which it records
	watched int64 // when the watchdog last kept it, by Loop.Now
}

// Queue is a queue with a Recorder.
type Queue interface {
	// Loop is the loop of its reactor.
	Loop() fabric.Loop
	// Describe describes the queue without its commands. Any goroutine may call it.
	Describe() observed.TraceQueue
	// CommandName implements Namer. Any goroutine may call it.
	CommandName(nvme.Opcode, nvme.FabricsType) (name string, blocks bool)
	// Open calls add with the commands that are not completed, and their states. Reactor only.
	Open(add func(r *fabric.Request, state string))
}

// copy takes a copy.
func (r *Recorder) copy(to *TraceCopy) {
	to.Copy(&r.Ring, r.Queue.Loop().Clock())
	r.Queue.Open(to.AddOpen)
}

// Dump keeps the recorded commands, if there is room, and reports whether it did.
func (r *Recorder) Dump(d *Dumps, reason string) bool {
	q := r.Queue.Describe()
	if !d.Allows(q.Remote.Addr(), time.Now()) {
		return false
	}
	from := new(TraceCopy)
	r.copy(from)
	from.Describe(&q, r.Queue.CommandName, 0, false)
	q.Reason = reason
	d.Add(q)
	return true
}

const (
	// WatchdogAfter is how long a command may take, in nanoseconds: hosts give up after 30 s
	// (Linux io_timeout). watchdogEvery is how often the queue is kept then.
	WatchdogAfter = int64(5e9)
	watchdogEvery = int64(60e9)
)

// Watchdog makes a dump of the queue for a command that takes, or has taken, this long. It reports
// whether it did.
func (r *Recorder) Watchdog(d *Dumps, took time.Duration) bool {
	now := r.Queue.Loop().Now()
	if !r.Records() || r.watched != 0 && now-r.watched < watchdogEvery {
		return false
	}
	r.watched = now
	return r.Dump(d, fmt.Sprintf("a command takes %v", took))
}

// traceEvery is how often reactors are asked for commands that a client follows.
const traceEvery = 100 * time.Millisecond

// Reactor has the recorders of a reactor. Walk calls visit with each in pieces, and then done.
type Reactor struct {
	Loop fabric.Loop
	Walk func(visit func(*Recorder), done func())
}

// Trace calls fn with the recorded commands, and with q.Follow goes on until ctx ends. An error is
// that of fn, or of ctx.
func Trace(ctx context.Context, d *Dumps, reactors func() []Reactor, q observed.TraceQuery,
	fn func(observed.TraceQueue) error,
) error {
	if q.Dumps {
		for _, d := range d.List(&q) {
			if err := fn(d); err != nil {
				return err
			}
		}
		return nil
	}
	tracer := NewTracer(q, reactors)
	for {
		if err := tracer.Read(ctx, fn); err != nil || !q.Follow {
			return err
		}
		select {
		case <-time.After(traceEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Tracer reads the recorded commands, for one goroutine at a time.
type Tracer struct {
	reactors func() []Reactor
	query    observed.TraceQuery
	read     map[uint64]uint64 // the last number, by the ID of the queue
}

// NewTracer makes a Tracer. With q.Follow, Read returns each command once, after its response.
func NewTracer(q observed.TraceQuery, reactors func() []Reactor) *Tracer {
	return &Tracer{reactors: reactors, query: q, read: map[uint64]uint64{}}
}

// Read calls fn with the recorded commands of each queue of an allowed host, when following only if
// there are new ones. A reactor copies a queue in a turn, which takes some 2 µs. An error is that
// of fn, or of ctx.
func (t *Tracer) Read(ctx context.Context, fn func(observed.TraceQueue) error) error {
	before, read := t.read, map[uint64]uint64{} // without queues that have ended
	for _, r := range t.reactors() {
		var found []*Recorder
		look := func(r *Recorder) {
			q := r.Queue.Describe()
			switch {
			case !r.Records() || !t.query.Selects(q.Host, q.Subsystem, q.QID):
			case t.query.Follow && r.Total() == before[q.ID]: // no message for idle queues
				read[q.ID] = r.Total()
			default:
				found = append(found, r)
			}
		}
		err := DoAll(ctx, r.Loop, func(done func()) { r.Walk(look, done) })
		for i := 0; err == nil && i < len(found); i++ {
			q := found[i].Queue.Describe()
			if _, visited := read[q.ID]; !visited {
				read[q.ID], err = t.readQueue(ctx, found[i], &q, fn)
			}
		}
		if err != nil {
			return err
		}
	}
	t.read = read
	return nil
}

func (t *Tracer) readQueue(ctx context.Context, r *Recorder, q *observed.TraceQueue,
	fn func(observed.TraceQueue) error,
) (uint64, error) {
	from := new(TraceCopy) // the reactor may use it after an error
	after := t.read[q.ID]
	if err := Do(ctx, r.Queue.Loop(), func() { r.copy(from) }); err != nil {
		return 0, err
	}
	last := from.Describe(q, r.Queue.CommandName, after, t.query.Follow)
	if t.query.Follow && last == after {
		return last, nil
	}
	return last, fn(*q)
}
