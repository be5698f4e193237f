// Package load generates I/O with nvme/host and measures it, for tests/bench and for "nvmf-target
// bench". Each thread runs a loop that polls its own queues and allocates nothing.
package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// queuesPerController is the default limit of the target.
const queuesPerController = 128

// Options configure the connections.
type Options struct {
	Transport host.Transport
	Host      host.Options
	// NSID is the namespace; 0 means 1.
	NSID uint32
	// Timeout bounds the wait for an answer to a command; 0 means no limit.
	Timeout time.Duration
}

// Load is a set of workloads with their queues, for one goroutine at a time and its threads.
type Load struct {
	o           Options
	controllers []*host.Controller
	streams     []*Stream
}

// aloneTurn is the turn of a load with a single queue: as much as the socket accepts.
const aloneTurn = 16 << 20

// New connects all queues of the workloads.
func New(ctx context.Context, o Options, list ...Workload) (*Load, error) {
	if tcp, ok := o.Transport.(host.TCP); ok && len(list) == 1 && list[0].Queues == 1 {
		tcp.Turn = aloneTurn
		o.Transport = tcp
	}
	o.NSID = cmp.Or(o.NSID, 1)
	l := &Load{o: o}
	for i := range list {
		if err := l.add(ctx, &list[i]); err != nil {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

func (l *Load) add(ctx context.Context, w *Workload) error {
	for opened := 0; opened < w.Queues; {
		c, err := host.Connect(ctx, l.o.Transport, l.o.Host)
		if err != nil {
			return err
		}
		l.controllers = append(l.controllers, c)
		n := min(w.Queues-opened, queuesPerController)
		if granted, err := c.SetQueueCount(ctx, n); err != nil || granted < n {
			return errors.Join(fmt.Errorf("the controller grants %d I/O queues, but %d are needed",
				granted, n), err)
		}
		for qid := range n {
			if err := l.open(ctx, c, uint16(qid+1), w, opened); err != nil {
				return err
			}
			opened++
		}
	}
	return nil
}

// open opens queue number index of w.
func (l *Load) open(ctx context.Context, c *host.Controller, qid uint16, w *Workload,
	index int,
) error {
	ns, err := c.IdentifyNamespace(ctx, l.o.NSID)
	if err != nil {
		return err
	}
	if err := Usable(ns); err != nil {
		return fmt.Errorf("namespace %d: %w", l.o.NSID, err)
	}
	memory, err := c.Map(w.Depth * w.largest())
	if err != nil {
		return err
	}
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	// One entry of a queue stays unused.
	q, err := c.OpenQueue(ctx, qid, max(2, min(w.Depth+1, int(c.CAP().MQES())+1)))
	if err != nil {
		return err
	}
	s := &Stream{
		w: w, queue: q, nsid: l.o.NSID, number: len(l.streams), timeout: l.o.Timeout,
		block: 1 << ns.Format().LBADS,
	}
	l.streams = append(l.streams, s)
	return s.init(ns.NSZE, index, memory)
}

// Usable returns an error if the description of a namespace makes I/O impossible.
func Usable(ns *nvme.IdentifyNamespace) error {
	f := ns.Format()
	switch {
	case ns.NSZE == 0:
		return errors.New("does not exist, or is not attached to this controller: see " +
			"--namespace")
	case f.LBADS < 9 || f.LBADS > 20:
		return fmt.Errorf("blocks of 2^%d bytes, only 512 bytes to 1 MiB are supported", f.LBADS)
	case ns.NSZE > 1<<62>>f.LBADS:
		return fmt.Errorf("%d blocks of %d bytes are impossible", ns.NSZE, 1<<f.LBADS)
	case f.MS != 0:
		return fmt.Errorf("blocks have %d bytes of metadata, which is not supported", f.MS)
	}
	return nil
}

// Close disconnects without a shutdown. A host with time calls Shutdown first.
func (l *Load) Close() {
	for _, s := range l.streams {
		_ = s.queue.Close()
	}
	for _, c := range l.controllers {
		c.Close()
	}
}

// Shutdown disconnects the queues, and shuts the controllers down.
func (l *Load) Shutdown(ctx context.Context) (err error) {
	for _, s := range l.streams {
		_ = s.queue.Close()
	}
	for _, c := range l.controllers {
		err = errors.Join(err, c.Shutdown(ctx))
	}
	return err
}

// Pass makes the next run with Verify write every place, or compare it with this pass.
func (l *Load) Pass(pass int, write bool) {
	for _, s := range l.streams {
		if s.w.Verify {
			s.startPass(uint64(pass), write)
		}
	}
}

// Run keeps the queues full for d, or until the workloads end if d is 0, and then waits for the
// I/Os in flight. It counts the completions of each stream in the outcome that count returns for
// it.
func (l *Load) Run(d time.Duration, count func(*Stream) *Outcome) error {
	t := Thread{streams: l.streams}
	return t.Run(d, count)
}

// Rotate does one I/O at a time for d, each on the next queue.
func (l *Load) Rotate(d time.Duration, o *Outcome) (err error) {
	start := time.Now()
	now, deadline := start, start.Add(d)
	for i := 0; now.Before(deadline); i++ {
		s := l.streams[i%len(l.streams)]
		s.counted = o
		if err := s.submit(now); err != nil {
			return err
		}
		for s.outstanding > 0 {
			if now, err = s.poll(now, nil); err != nil {
				return err
			}
		}
	}
	o.Elapsed = time.Since(start)
	return nil
}
