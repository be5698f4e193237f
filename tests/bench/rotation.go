package main

import (
	"fmt"
	"time"
)

// A host with a queue for each of its CPUs and an application that waits for each I/O before the
// next has one I/O in flight, now on this connection and now on that. What the target spends on the
// others is seen in what it keeps of the IOPS on one connection.

var rotations = []int{1, 4, 16, 100}

func rotationName(queues int) string {
	return fmt.Sprintf("4K random read, 1 in flight going round %d connections", queues)
}

// rotationRound measures one number of connections. There is no floor: bare sockets that poll all
// connections have the same to gain.
func (b *bench) rotationRound(queues int) error {
	w := workload{
		name: rotationName(queues), size: 4 << 10, depth: 1, queues: queues, reads: 100,
	}
	s, err := b.server(variant{})
	if err != nil {
		return err
	}
	l, err := newLoad(s.transport(false), benchNQN, w)
	if err != nil {
		return err
	}
	defer l.close()
	var o outcome
	for _, m := range []struct {
		d time.Duration
		o *outcome
	}{{b.duration / 4, &outcome{}}, {b.duration, &o}} { // warm up first
		if err := l.rotate(m.d, m.o); err != nil {
			return err
		}
	}
	b.record(w, whoTarget, o.figures())
	return nil
}

// rotate does one I/O after another for d, each on the next queue.
func (l *load) rotate(d time.Duration, o *outcome) (err error) {
	start := time.Now()
	now, deadline := start, start.Add(d)
	for i := 0; now.Before(deadline); i++ {
		s := l.streams[i%len(l.streams)]
		if err := s.submit(now); err != nil {
			return err
		}
		for s.outstanding > 0 {
			if now, err = s.poll(o, now); err != nil {
				return err
			}
		}
	}
	o.elapsed = time.Since(start)
	return nil
}

// rotationBounds are one for each number of connections.
func rotationBounds() []bound {
	var list []bound
	for _, n := range rotations[1:] {
		list = append(list, beside(
			fmt.Sprintf("1 in flight going round %d connections over 1: IOPS", n),
			rotationName(n), rotationName(1), 0.9, ""))
	}
	return list
}
