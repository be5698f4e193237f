package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/secret"
)

// Every is the time between two states.
var Every = 2 * time.Second // tests change it

const (
	// slowly is the time between two looks at disks and at the configuration file, and patience the
	// longest wait for an answer of reactors and disks.
	slowly = time.Minute
	// compared is the longest time between compared looks at the load, and half of it the shortest.
	compared = time.Minute
	patience = 3 * time.Second
)

// Source has the state for the page. One goroutine at a time calls Disks and Plan, another one the
// other functions, which return soon, or with their context. Latency needs no quantiles.
type Source struct {
	observed.Source
	// Plan returns the changes of a reload, and control.ErrBusy while they cannot be known.
	Plan func(context.Context) (control.Plan, error)
}

// spent is the time that the commands for a namespace took since it was added, over all hosts.
type spent struct {
	counts map[int]uint64    // commands, by bucket
	stages map[string]uint64 // nanoseconds, by the name of the stage
}

// spentBy adds up the latencies of each namespace over hosts and operations, by its name.
func spentBy(list []observed.Latency) map[string]spent {
	all := map[string]spent{}
	for _, l := range list {
		name := nameOf(l.Subsystem, l.NSID)
		if _, ok := all[name]; !ok {
			all[name] = spent{map[int]uint64{}, map[string]uint64{}}
		}
		for _, b := range l.Buckets {
			all[name].counts[bucket(b.NS)] += b.Count
		}
		for _, stage := range l.Stages {
			all[name].stages[stage.Stage] += stage.Nanoseconds
		}
	}
	return all
}

// bucket returns the number of a range of durations: there are four for each power of two.
func bucket(ns int64) int {
	if ns < 4 {
		return 0
	}
	log := bits.Len64(uint64(ns)) - 1
	return log<<2 | int(ns>>(log-2))&3
}

// sampler makes states while pages are open, and the history always. Any goroutine may use it.
type sampler struct {
	feed // mu guards slow, looking, looked and turn as well
	src  Source
	log  *slog.Logger
	// mistaken is done when a panic has been logged.
	mistaken sync.Once
	ctx      context.Context // ends with close
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	// now is the clock. elapsed returns the time since the start, unaffected by changes of the
	// clock. turn returns a channel that ends a wait.
	now     func() time.Time
	elapsed func() time.Duration
	turn    func(time.Duration) <-chan time.Time
	history history

	slow    slow
	looking bool // for a new value of slow
	looked  time.Time
}

// past has two earlier looks at the load, the newer one at most half of compared ago.
type past struct {
	now          func() time.Time
	older, newer *doctor.Sample
	ports        []observed.PortCounter // last known
}

// before returns the look to compare now with, nil at the first look. If ports did not answer in
// time, their last known counters are used, or the first ones that are known.
func (p *past) before(now *doctor.Sample) *doctor.Sample {
	if now.Ports == nil {
		now.Ports = p.ports
	}
	p.ports = now.Ports
	for _, s := range []*doctor.Sample{p.older, p.newer} {
		if s != nil && s.Ports == nil {
			s.Ports = now.Ports
		}
	}
	before := cmp.Or(p.older, p.newer)
	if p.newer == nil || now.Time.Sub(p.newer.Time) >= compared/2 {
		p.older, p.newer = p.newer, now
	}
	return before
}

// slow has the facts that take long to find.
type slow struct {
	disks    []observed.Disk
	diskErr  string
	plan     control.Plan
	planErr  string
	planTime time.Time // zero: not yet
}

func newSampler(src Source, log *slog.Logger) *sampler {
	start := time.Now()
	s := &sampler{
		feed: newFeed(), src: src, log: log, now: time.Now,
		elapsed: func() time.Duration { return time.Since(start) }, turn: time.After,
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.run)
	return s
}

// run keeps the history until close, and makes states while pages are open.
func (s *sampler) run() {
	for s.ctx.Err() == nil {
		s.safely(s.glance)
		select {
		case <-time.After(rarely):
		case <-s.opened:
			s.show()
		case <-s.ctx.Done():
		}
	}
}

// glance adds to the history alone.
func (s *sampler) glance() {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	latencies, err := s.src.Latency(ctx)
	s.history.look(s.elapsed(), s.src.Namespaces(), latencies, err == nil)
}

// show makes states until no page is open, and a turn longer for pages that come and go.
func (s *sampler) show() {
	load := past{now: s.now}
	for s.goesOn(s.ctx) {
		s.look()
		if state, about := s.sample(&load); state != nil {
			s.publish(state, about)
		}
		s.mu.Lock()
		turn := s.turn
		s.mu.Unlock()
		select {
		case <-turn(Every):
		case <-s.ctx.Done():
		}
	}
}

// look finds the facts in slow again, in the background.
func (s *sampler) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looking || time.Since(s.looked) < slowly {
		return
	}
	s.looking = true
	found, looked := s.slow, s.looked
	s.wg.Go(func() {
		if !s.safely(func() { s.find(&found, &looked) }) {
			looked = time.Now()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.slow, s.looking, s.looked = found, false, looked
	})
}

// find finds the facts in slow. It records the time unless it should be repeated soon.
func (s *sampler) find(found *slow, looked *time.Time) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	disks, err := s.src.Disks(ctx)
	found.disks, found.diskErr = disks, text(err)
	if plan, err := s.src.Plan(s.ctx); !errors.Is(err, control.ErrBusy) {
		found.plan, found.planErr, found.planTime = plan, text(err), time.Now()
		*looked = found.planTime
	}
}

// safely keeps a panic of displaying from ending the target, as net/http does.
func (s *sampler) safely(fn func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("%v\n%s", p, debug.Stack())
			s.mistaken.Do(func() { // not every two seconds
				s.log.Error("the page cannot show the state: a bug in this program", "err", err)
			})
		}
	}()
	fn()
	return true
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// sample makes a state, nil if that fails.
func (s *sampler) sample(load *past) (text []byte, about *summary) {
	s.safely(func() { text, about = s.marshal(load) })
	return text, about
}

func (s *sampler) marshal(load *past) ([]byte, *summary) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	s.mu.Lock()
	found := s.slow
	s.mu.Unlock()
	state := newState(ctx, s, &found, load)
	text, err := json.Marshal(state)
	if err != nil {
		return nil, nil
	}
	return []byte(secret.Mask(string(text))), &state.Summary
}
