package web

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rates"
)

// The bounds of the points: 3 MB for any target, and 3 KB for the last counters of a namespace.
const (
	// rarely is the time between two looks while no page is open, and that of a point of the hour.
	rarely = 10 * time.Second
	// paused is the time after which the history has a gap, because the target did not run.
	paused = 3 * rarely
	// recentPoints is the number of points of the last minutes, hourPoints that of length rarely.
	recentPoints, hourPoints = 150, 360
	// maxSeries is the number of series: one for all namespaces, and one for each of the busiest.
	maxSeries = 12
	// Buckets of durations are kept from 1 µs to 17 s; others count in the first or last one.
	firstBucket, buckets = 40, 96
)

var stageNames = [...]string{"wait", "host_data", "backend", "response"}

// counters are the counters of a namespace, or their sums over all, since the start.
type counters struct {
	reads, writes, read, written uint64
}

func (c *counters) add(o *counters) {
	c.reads += o.reads
	c.writes += o.writes
	c.read += o.read
	c.written += o.written
}

// point is the load of some seconds.
type point struct {
	end      float64 // in seconds since the sampler began
	seconds  float32
	notKnown bool // a gap
	counters
	counts [buckets]uint32
	stages [len(stageNames)]uint64 // nanoseconds
}

func (p *point) add(o *point) {
	p.end, p.seconds = o.end, p.seconds+o.seconds
	p.counters.add(&o.counters)
	for i, n := range o.counts {
		p.counts[i] += n
	}
	for i, ns := range o.stages {
		p.stages[i] += ns
	}
}

func (p *point) MarshalJSON() ([]byte, error) {
	if p.notKnown {
		return fmt.Appendf(nil, `{"t":%.1f,"s":%.1f}`, p.end, p.seconds), nil
	}
	counts, stages := map[int]uint32{}, map[string]uint64{}
	for i, n := range p.counts {
		if n > 0 {
			counts[i+firstBucket] = n
		}
	}
	for i, ns := range p.stages {
		if ns > 0 {
			stages[stageNames[i]] = ns
		}
	}
	return json.Marshal(map[string]any{
		"t": p.end, "s": p.seconds, "reads": p.reads, "writes": p.writes, "read": p.read,
		"written": p.written, "counts": counts, "stages": stages,
	})
}

// ring keeps the newest points.
type ring struct {
	points []point
	next   int
}

func (r *ring) push(p *point, most int) {
	if len(r.points) < most {
		r.points = slices.Grow(r.points, most-len(r.points)) // once, and not beyond
		r.points = append(r.points, *p)
		return
	}
	r.points[r.next] = *p
	r.next = (r.next + 1) % most
}

// list returns the points in order.
func (r *ring) list() []point { return slices.Concat(r.points[r.next:], r.points[:r.next]) }

// series is the history of a namespace, or of all.
type series struct {
	recent, hour ring
	sum          point // of the points that make up the next one of hour
}

func (s *series) push(p *point) {
	s.recent.push(p, recentPoints)
	if p.notKnown {
		s.hour.push(p, hourPoints)
		s.sum = point{}
	} else if s.sum.add(p); s.sum.seconds >= float32((rarely - Every/2).Seconds()) {
		s.hour.push(&s.sum, hourPoints)
		s.sum = point{}
	}
}

// list returns the points of the hour before the recent ones, followed by the recent ones.
func (s *series) list() []point {
	recent := s.recent.list()
	var list []point
	for _, p := range s.hour.list() {
		if p.end <= recent[0].end-float64(recent[0].seconds)+0.1 {
			list = append(list, p)
		}
	}
	return append(list, recent...)
}

// commands returns the number of commands in the hour.
func (s *series) commands() uint64 {
	n := s.sum.reads + s.sum.writes
	for i := range s.hour.points {
		n += s.hour.points[i].reads + s.hour.points[i].writes
	}
	return n
}

// history has the last hour of the busiest namespaces and of all. Any goroutine may use it.
type history struct {
	mu     sync.Mutex
	series map[string]*series // by name; "" for all
	at     time.Duration      // of the last look
	before []observed.Namespace
	// latencies are the last known ones.
	latencies map[string]spent
}

// nameOf returns the name of a namespace on the page.
func nameOf(subsystem string, nsid uint32) string {
	return fmt.Sprintf("%d of %s", nsid, subsystem)
}

// look adds the growth of the counters since the last look, and returns it for each namespace, and
// for all as "". at only rises, even if the clock is set back. known: latencies are known.
func (h *history) look(at time.Duration, list []observed.Namespace, latencies []observed.Latency,
	known bool,
) map[string]*point {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := h.series == nil
	if first {
		h.series, h.latencies = map[string]*series{}, map[string]spent{}
	}
	at = at.Round(time.Millisecond)
	seconds := (at - h.at).Seconds()
	if !first && seconds <= 0 {
		return map[string]*point{"": {end: at.Seconds(), notKnown: true}}
	}
	blank := point{end: at.Seconds(), seconds: float32(seconds)}
	blank.notKnown = first || at-h.at > paused
	total := blank
	points := map[string]*point{"": &total}
	name := func(n *observed.Namespace) string { return nameOf(n.Subsystem, n.NSID) }
	rates.Each(h.before, list, name, func(old, n *observed.Namespace) {
		p := blank
		points[name(n)] = &p
		if p.notKnown = p.notKnown || old == nil; p.notKnown {
			return
		}
		p.counters = counters{
			rates.Growth(old.Reads, n.Reads), rates.Growth(old.Writes, n.Writes),
			rates.Growth(old.ReadBytes, n.ReadBytes),
			rates.Growth(old.WrittenBytes, n.WrittenBytes),
		}
		total.counters.add(&p.counters)
	})
	if known {
		h.addLatencies(points, spentBy(latencies))
	}
	h.at, h.before = at, list
	h.keep(points)
	return points
}

// addLatencies adds the growth of latencies since they were last known.
func (h *history) addLatencies(points map[string]*point, latencies map[string]spent) {
	for name, l := range latencies {
		old, p := h.latencies[name], points[name]
		if p == nil || p.notKnown {
			continue
		}
		var of point
		for b, n := range rates.Since(old.counts, l.counts) {
			of.counts[min(max(b-firstBucket, 0), buckets-1)] += uint32(n)
		}
		stages := rates.Since(old.stages, l.stages)
		for i, stage := range stageNames {
			of.stages[i] = stages[stage]
		}
		p.add(&point{end: p.end, counts: of.counts, stages: of.stages})
		points[""].add(&point{end: p.end, counts: of.counts, stages: of.stages})
	}
	h.latencies = latencies
}

// keep adds points to the existing series. A namespace without a series takes a free place, or the
// place of a namespace that did less in the hour than this one did now.
func (h *history) keep(points map[string]*point) {
	var others []string
	for name, p := range points {
		if s := h.series[name]; s != nil {
			s.push(p)
		} else {
			others = append(others, name)
		}
	}
	for name := range h.series {
		if points[name] == nil {
			delete(h.series, name)
		}
	}
	commands := func(name string) uint64 {
		if name == "" {
			return math.MaxUint64
		}
		return points[name].reads + points[name].writes
	}
	slices.SortFunc(others, func(a, b string) int {
		return cmp.Or(cmp.Compare(commands(b), commands(a)), cmp.Compare(a, b))
	})
	for _, name := range others {
		if len(h.series) == maxSeries && !h.evict(commands(name)) {
			return
		}
		s := &series{}
		s.push(points[name])
		h.series[name] = s
	}
}

// evict drops the namespace with the fewest commands in the hour if they are fewer than n.
func (h *history) evict(n uint64) bool {
	least := ""
	for name, s := range h.series {
		if c := s.commands(); name != "" && c < n {
			least, n = name, c
		}
	}
	if least != "" {
		delete(h.series, least)
	}
	return least != ""
}

// of returns the points of a namespace, "" for all; none if its history is not kept.
func (h *history) of(name string) []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.series[name]; s != nil {
		return s.list()
	}
	return []point{}
}
