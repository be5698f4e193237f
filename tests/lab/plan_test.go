package lab

import (
	_ "embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// scenario is a file of scenarios/, with the values of its head.
type scenario struct {
	name     string
	variants []string // transports
	sample   int      // how many variants a sample has
	alone    bool     // nothing else may run beside it
}

// qemuSampled are the tests under QEMU of which a sample has two; it has Systemd, too.
var qemuSampled = scenario{
	name: "qemu", sample: 2,
	variants: []string{"DAX", "DebianKernel", "Disks", "Memory", "NVMe", "Upgrade", "Virtio"},
}

func scenarios() ([]scenario, error) {
	files, err := filepath.Glob("scenarios/*.sh")
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no scenarios: %w", err)
	}
	var all []scenario
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s := scenario{
			name:     strings.TrimSuffix(filepath.Base(file), ".sh"),
			variants: strings.Fields(headValue(text, "variants")),
			alone:    headValue(text, "alone") != "",
		}
		s.sample = len(s.variants)
		if v := headValue(text, "sample"); v != "" {
			if s.sample, err = strconv.Atoi(v); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
		if len(s.variants) == 0 {
			return nil, fmt.Errorf("%s names no variants", file)
		}
		all = append(all, s)
	}
	return all, nil
}

func headValue(script []byte, key string) string {
	m := regexp.MustCompile(`(?m)^# ` + key + `:[ \t]*(.*)$`).FindSubmatch(script)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// sampled are the variants that the sample of a seed has.
func (s *scenario) sampled(seed uint64) []string {
	h := fnv.New64()
	h.Write([]byte(s.name))
	chosen := rand.New(rand.NewPCG(seed, h.Sum64())).Perm(len(s.variants))[:s.sample]
	slices.Sort(chosen)
	var list []string
	for _, i := range chosen {
		list = append(list, s.variants[i])
	}
	return list
}

// durations are seconds by the name of a test, as in "connect/rxe".
type durations map[string]float64

// usualDurations were measured on two quiet CPUs.
//
//go:embed durations
var usualDurations string

// loadDurations reads what earlier runs on this machine have recorded in file, and has the usual
// durations of what they did not run.
func loadDurations(file string) (durations, error) {
	d := durations{}
	recorded, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(usualDurations + string(recorded)) {
		var name string
		var seconds float64
		if _, err := fmt.Sscan(line, &name, &seconds); err != nil {
			return nil, fmt.Errorf("durations: %q: %w", line, err)
		}
		d[name] = seconds
	}
	return d, nil
}

func (d durations) save(file string) error {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(d)) {
		fmt.Fprintf(&text, "%s %.1f\n", name, d[name])
	}
	if err := os.WriteFile(file+".new", []byte(text.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// of is the expected duration of a test.
func (d durations) of(name string) float64 {
	if s, ok := d[name]; ok {
		return s
	}
	return 30
}

// progress prints how far a run is. Its methods may be called by any goroutine.
type progress struct {
	expected durations
	parallel int // tests that run at once

	mu      sync.Mutex
	planned bool            // it is known what will run
	pending map[string]bool // tests that have not ended
	done    int
}

func newProgress(names []string, expected durations, parallel int) *progress {
	p := &progress{
		expected: expected, parallel: parallel, planned: len(names) > 0,
		pending: map[string]bool{},
	}
	for _, n := range names {
		p.pending[n] = true
	}
	return p
}

// end records that a test has ended and returns a line about it. took is negative if the test was
// skipped or has failed, which says nothing about its duration.
func (p *progress) end(name, result string, took time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, name)
	p.done++
	if took >= 0 {
		p.expected[name] = took.Seconds()
	}
	if !p.planned {
		return fmt.Sprintf("lab: %s %s", name, result)
	}
	left := 0.0
	for n := range p.pending {
		left += p.expected.of(n)
	}
	return fmt.Sprintf("lab: %d of %d, about %.0f min left: %s %s", p.done, p.done+len(p.pending),
		left/float64(p.parallel)/60, name, result)
}

func TestSampled(t *testing.T) {
	all, err := scenarios()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range append(all, qemuSampled) {
		seen := map[string]bool{}
		for seed := range uint64(50) {
			chosen := s.sampled(seed)
			if len(chosen) != s.sample {
				t.Errorf("%s: %d variants in a sample, want %d", s.name, len(chosen), s.sample)
			}
			if !slices.Equal(chosen, s.sampled(seed)) {
				t.Errorf("%s: seed %d chooses differently the second time", s.name, seed)
			}
			for _, v := range chosen {
				seen[v] = true
			}
		}
		if s.sample > 0 && len(seen) != len(s.variants) {
			t.Errorf("%s: 50 samples have only %v of %v", s.name, seen, s.variants)
		}
	}
}

func TestProgress(t *testing.T) {
	file := filepath.Join(t.TempDir(), "durations")
	d, err := loadDurations(file)
	if err != nil || d.of("connect/rxe") <= 0 {
		t.Fatal(d, err)
	}
	d["a"], d["b"] = 60, 240
	p := newProgress([]string{"a", "b", "c"}, d, 2)
	for _, step := range []struct {
		name, want string
		took       time.Duration
	}{
		{"a", "lab: 1 of 3, about 2 min left: a passed", 70 * time.Second},
		{"b", "lab: 2 of 3, about 0 min left: b passed", -1},
		{"c", "lab: 3 of 3, about 0 min left: c passed", time.Second},
	} {
		if got := p.end(step.name, "passed", step.took); got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
	if err := p.expected.save(file); err != nil {
		t.Fatal(err)
	}
	if d, err = loadDurations(file); err != nil || d["a"] != 70 || d["b"] != 240 || d["c"] != 1 {
		t.Errorf("after saving: %v, %v", d, err)
	}
}
