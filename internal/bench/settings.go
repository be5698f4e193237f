// Package bench implements the command "nvmf-target bench". It generates load on a namespace of any
// target with nvme/host, and reports the results.
//
//	Settings ──stages──> internal/load ──outcomes──> Report ──> text, JSON, HTML, comparison
package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/load"
)

// Settings describe a measurement. Most names and meanings follow fio.
type Settings struct {
	Profile     string        `json:"profile,omitempty"`
	RW          string        `json:"rw,omitempty"`
	MixRead     int           `json:"rwmixread,omitempty"` // percent
	BlockSize   string        `json:"bs,omitempty"`
	Depth       int           `json:"iodepth,omitempty"`
	Jobs        int           `json:"numjobs,omitempty"`
	Threads     int           `json:"threads"`
	Rate        float64       `json:"rate,omitempty"` // IOPS of all jobs
	Flush       int           `json:"fsync,omitempty"`
	Runtime     time.Duration `json:"runtime_ns"`
	Ramp        time.Duration `json:"ramp_time_ns"`
	Offset      string        `json:"offset,omitempty"`
	Size        string        `json:"size,omitempty"`
	Verify      bool          `json:"verify,omitempty"`
	Passes      int           `json:"passes,omitempty"`
	Seed        uint64        `json:"seed"`
	DestroyData bool          `json:"-"`
}

// Patterns are the values of RW.
var Patterns = []string{"read", "write", "randread", "randwrite", "rw", "randrw"}

// reads returns the percentage of reads of a pattern.
func (s *Settings) reads() int {
	switch strings.TrimPrefix(s.RW, "rand") {
	case "read":
		return 100
	case "write":
		return 0
	}
	return s.MixRead
}

// stage is the work of one set of connections.
type stage struct {
	workloads []load.Workload
	runs      []run
}

// run is a part of a stage with its own figures.
type run struct {
	name  string
	d     time.Duration // 0: each place once
	pass  int
	write bool
}

func (s *stage) writes() bool {
	return slices.ContainsFunc(s.runs, func(r run) bool { return r.write }) ||
		slices.ContainsFunc(s.workloads,
			func(w load.Workload) bool { return w.Reads < 100 && !w.Verify })
}

// stages returns the work for a namespace of this many bytes.
func (s *Settings) stages(whole uint64) ([]stage, error) {
	if s.Profile != "" {
		return s.profile(whole)
	}
	w := load.Workload{
		Name: s.RW, Depth: s.Depth, Queues: s.Jobs, Reads: s.reads(), Burst: s.Flush, Rate: s.Rate,
		Sequential: !strings.HasPrefix(s.RW, "rand"), Verify: s.Verify, Seed: s.Seed,
	}
	bs, err := parseSize(s.BlockSize, 0)
	if err == nil && (bs == 0 || bs > math.MaxInt32) {
		err = errors.New("must be at least a block and less than 2 GiB")
	}
	if err != nil {
		return nil, fmt.Errorf("--bs %s: %w", s.BlockSize, err)
	}
	w.Size = int(bs)
	if w.Offset, err = parseSize(s.Offset, whole); err != nil {
		return nil, fmt.Errorf("--offset %s: %w", s.Offset, err)
	}
	if w.Length, err = parseSize(s.Size, whole); err != nil {
		return nil, fmt.Errorf("--size %s: %w", s.Size, err)
	}
	w.Offset -= w.Offset % bs
	if w.Offset >= whole || w.Length > whole-w.Offset {
		return nil, fmt.Errorf("--offset %q, --size %q: the namespace has %d bytes", s.Offset,
			s.Size, whole)
	}
	if !s.Verify {
		return []stage{{[]load.Workload{w}, []run{{name: s.RW, d: s.Runtime}}}}, nil
	}
	st := stage{workloads: []load.Workload{w}}
	if w.Reads == 100 {
		st.runs = []run{{fmt.Sprintf("verify pass %d", s.Passes), s.Runtime, s.Passes, false}}
		return []stage{st}, nil
	}
	for pass := 1; pass <= s.Passes; pass++ {
		st.runs = append(st.runs, run{fmt.Sprintf("write pass %d", pass), s.Runtime, pass, true},
			run{fmt.Sprintf("verify pass %d", pass), 0, pass, false})
	}
	return []stage{st}, nil
}

// Check returns an error for invalid settings, as far as they can be checked without a target.
func (s *Settings) Check() error {
	switch {
	case s.Profile != "" && !slices.Contains(Profiles(), s.Profile):
		return fmt.Errorf("--profile %q: must be one of %s", s.Profile,
			strings.Join(Profiles(), ", "))
	case s.Profile == "" && !slices.Contains(Patterns, s.RW):
		return fmt.Errorf("--rw %q: must be one of %s", s.RW, strings.Join(Patterns, ", "))
	case s.MixRead < 0 || s.MixRead > 100:
		return fmt.Errorf("--rwmixread %d: must be 0 to 100 percent", s.MixRead)
	case s.Profile == "" && (s.Depth < 1 || s.Depth > 4095):
		return fmt.Errorf("--iodepth %d: must be 1 to 4095", s.Depth)
	case s.Profile == "" && (s.Jobs < 1 || s.Jobs > 1024):
		return fmt.Errorf("--numjobs %d: must be 1 to 1024", s.Jobs)
	case s.Threads < 0:
		return fmt.Errorf("--threads %d: must be at least 1, or 0 for half of the CPUs", s.Threads)
	case s.Rate != 0 && !(s.Rate >= 1 && s.Rate <= 1e9): // refuses NaN
		return fmt.Errorf("--rate %v: must be 1 to 1e9 IOPS, or 0 for no limit", s.Rate)
	case s.Flush < 0:
		return fmt.Errorf("--fsync %d: must be 0 or more writes", s.Flush)
	case s.Runtime < 0 || s.Ramp < 0:
		return errors.New("--runtime and --ramp-time: must not be negative")
	case s.Runtime == 0 && !s.Verify:
		return errors.New("--runtime 0: only --verify ends by itself")
	case s.Verify && s.reads() != 0 && s.reads() != 100:
		return errors.New("--verify: goes with --rw write or randwrite, which write each block " +
			"once and read it back, and with read and randread, which check the data of such a " +
			"run")
	case s.Verify && (s.Passes < 1 || s.Passes > 1000):
		return fmt.Errorf("--passes %d: must be 1 to 1000", s.Passes)
	case s.Verify && s.reads() == 100 && s.Seed == 0:
		return errors.New("--verify of data from an earlier run: give its --seed " +
			"(it is in its report), and the same --size, --offset, --bs, --numjobs, --passes")
	}
	for i, v := range []string{s.BlockSize, s.Offset, s.Size} {
		if _, err := parseSize(v, 1); err != nil {
			return fmt.Errorf("--%s %q: %w", []string{"bs", "offset", "size"}[i], v, err)
		}
	}
	return nil
}

// parseSize reads bytes as fio does: 4096, 4k, 4KiB, 1m, 10g, or 25% of whole. Empty text is 0.
func parseSize(text string, whole uint64) (uint64, error) {
	digits := strings.TrimRight(strings.ToLower(text), "kmgtib%")
	unit := strings.ToLower(text[len(digits):])
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	power := strings.Index("kmgt", strings.TrimSuffix(strings.TrimSuffix(unit, "b"), "i"))
	switch {
	case err != nil:
	case unit == "%" && whole > 0 && n <= 100:
		return whole / 100 * n, nil
	case unit == "" || unit == "b":
		return n, nil
	case power >= 0 && len(unit) <= 3 && unit[0] == "kmgt"[power] && n < 1<<(53-10*power):
		return n << (10 * (power + 1)), nil
	}
	return 0, errors.New("want bytes, such as 4096, 4k, 128KiB or 10g, or of a range 25%")
}
