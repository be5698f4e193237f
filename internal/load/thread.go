package load

import (
	"sync/atomic"
	"time"
)

// Thread runs some streams of a load in one loop. One goroutine at a time uses it.
type Thread struct {
	// Stop, if set, ends a run early as if its time had passed.
	Stop *atomic.Bool
	// Series, if set, records the next run over time.
	Series *Series

	streams []*Stream
}

// Threads returns n loops for the streams of a load, but at most one for each stream.
func (l *Load) Threads(n int, stop *atomic.Bool) []*Thread {
	list := make([]*Thread, max(1, min(n, len(l.streams))))
	for i := range list {
		list[i] = &Thread{Stop: stop}
	}
	for i, s := range l.streams {
		t := list[i%len(list)]
		t.streams = append(t.streams, s)
	}
	return list
}

const (
	// shortest is the minimum sleep of a thread. It wakes up early before something is due.
	shortest, early = 2 * time.Millisecond, time.Millisecond
	// longest bounds the time until a stop is noticed.
	longest = 50 * time.Millisecond
)

// Run is Load.Run for the streams of a thread. After an error the I/Os before it are counted.
func (t *Thread) Run(d time.Duration, count func(*Stream) *Outcome) error {
	start := time.Now()
	now, deadline := start, start.Add(d)
	for _, s := range t.streams {
		s.begin(start, count(s))
	}
	if t.Series != nil {
		t.Series.end = start.Add(t.Series.Interval)
	}
	defer func() {
		for _, s := range t.streams {
			s.counted.Elapsed = max(s.counted.Elapsed, time.Since(start))
		}
	}()
	last := now // when I/Os were submitted
	var err error
	for busy := true; busy; {
		busy = false
		outstanding := 0
		for i, s := range t.streams {
			if s.timed() || len(t.streams) > 1 && len(t.streams[i].idle) > 0 {
				now = time.Now() // other streams have used time
			}
			if (d == 0 || now.Before(deadline)) && !s.exhausted() && !t.stopped() {
				busy, last = true, now
				if err = s.submit(now); err != nil {
					return err
				}
			}
			if s.outstanding == 0 {
				continue
			}
			busy = true
			if now, err = s.poll(now, t.Series); err != nil {
				return err
			}
			outstanding += s.outstanding
		}
		if busy && outstanding == 0 {
			t.sleep()
		}
	}
	for _, s := range t.streams {
		s.end(last)
	}
	return nil
}

func (t *Thread) stopped() bool { return t.Stop != nil && t.Stop.Load() }

// sleep waits until a stream has something to do.
func (t *Thread) sleep() {
	var wake time.Time
	for i, s := range t.streams {
		if !s.timed() {
			return
		}
		if w := s.wake(); i == 0 || w.Before(wake) {
			wake = w
		}
	}
	if wait := time.Until(wake); wait > shortest {
		time.Sleep(min(wait-early, longest))
	}
}
