package observed

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/rates"
)

// Distribution maps durations in nanoseconds to numbers of commands.
type Distribution map[int64]uint64

// Quantile returns the seconds that the fraction q of the commands did not exceed, 0 without any.
func (d Distribution) Quantile(q float64) float64 {
	total := uint64(0)
	for _, n := range d {
		total += n
	}
	left := uint64(q * float64(total))
	for _, ns := range slices.Sorted(maps.Keys(d)) {
		if d[ns] > left {
			return float64(ns) / 1e9
		}
		left -= d[ns]
	}
	return 0
}

// Spent is the time of commands, in all and in each stage. The zero value has no commands.
type Spent struct {
	Commands uint64
	Took     Distribution
	Stages   map[string]float64 // seconds, of all commands
}

// Add adds the commands of l.
func (s *Spent) Add(l *Latency) {
	if s.Took == nil {
		s.Took, s.Stages = Distribution{}, map[string]float64{}
	}
	s.Commands += l.IOs
	for _, b := range l.Buckets {
		s.Took[b.NS] += b.Count
	}
	for _, stage := range l.Stages {
		s.Stages[stage.Stage] += stage.MeanSeconds * float64(l.IOs)
	}
}

// Since returns the growth since old, which may be nil.
func (s *Spent) Since(old *Spent) *Spent {
	if old == nil || old.Commands > s.Commands { // restarted
		return s
	}
	out := &Spent{s.Commands - old.Commands, rates.Since(old.Took, s.Took), map[string]float64{}}
	for stage, seconds := range s.Stages {
		out.Stages[stage] = max(seconds-old.Stages[stage], 0)
	}
	return out
}

// Most returns the stage that took most of the time, its seconds, and its share.
func (s *Spent) Most() (stage string, seconds, share float64) {
	sum := 0.0
	for _, name := range slices.Sorted(maps.Keys(s.Stages)) {
		sum += s.Stages[name]
		if s.Stages[name] > seconds {
			stage, seconds = name, s.Stages[name]
		}
	}
	return stage, seconds, seconds / max(sum, 1e-9)
}

// ConnectionID identifies a connection, as long as ports are not reused.
type ConnectionID struct {
	transport     string
	local, remote netip.AddrPort
}

// ID returns the identification of the connection.
func (c *Connection) ID() ConnectionID { return ConnectionID{c.Transport, c.Local, c.Remote} }
