package lab

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// scenario is a file of scenarios/ or qemu/scenarios/, with the values of its head.
type scenario struct {
	name      string
	script    string   // to run it
	variants  []string // transports
	soak      []string // variants that are not in samples of make test
	smoke     []string // variants in the smoke set
	covers    []string // directories of the tree under test
	cpus      string
	parameter string  // of the kernel
	own       bool    // nothing else runs in its kernel
	alone     bool    // in full, nothing else may run beside it
	limit     float64 // seconds
	notNvmet  string  // why the target of the kernel cannot run it
}

const (
	labScript  = "./run.sh"
	qemuScript = "./qemu/run.sh"
)

// job is a run of a scenario.
type job struct {
	*scenario
	variant string
	mode    string // smoke, sample, or in full
	args    []string
}

func (j job) name() string { return j.scenario.name + "/" + j.variant }

// id returns the name of a job among durations.
func (j job) id() string { return j.mode + j.name() }

const smoke, sampled, full = "smoke:", "sample:", ""

// settings returns the arguments that set the size of scenarios.
func (j job) settings(seed uint64) []string {
	n := "SAMPLE=" + strconv.FormatUint(seed, 10)
	switch j.mode {
	case smoke:
		return []string{n, "SMOKE=1"}
	case sampled:
		return []string{n}
	}
	return nil
}

func newJob(s *scenario, variant, mode string) job {
	j := job{scenario: s, variant: variant, mode: mode}
	switch s.script {
	case qemuScript:
		j.args = []string{strings.TrimPrefix(s.name, "qemu-"), variant}
	case "./demo.sh":
		j.args = []string{"LAB=uml"}
	}
	return j
}

func scenarios() ([]scenario, error) {
	all := []scenario{{
		name: "demo", script: "./demo.sh", variants: []string{"uml"}, own: true, limit: 240,
		covers: []string{"internal/app", "internal/cli"},
	}}
	for _, dir := range []string{"scenarios", "qemu/scenarios"} {
		files, err := filepath.Glob(dir + "/*.sh")
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no scenarios in %s: %w", dir, err)
		}
		for _, file := range files {
			s, err := readScenario(file)
			if err != nil {
				return nil, err
			}
			// The other scripts of qemu/ belong to bench.sh and demo.sh.
			if s.script == labScript || len(s.covers) > 0 {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

func readScenario(file string) (scenario, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return scenario{}, err
	}
	value := func(key string) string { return headValue(text, key) }
	s := scenario{
		name: strings.TrimSuffix(filepath.Base(file), ".sh"), script: labScript,
		variants: strings.Fields(value("variants")), soak: strings.Fields(value("soak")),
		smoke: strings.Fields(value("smoke")), covers: strings.Fields(value("covers")),
		cpus: cmp.Or(value("cpus"), "1"), parameter: value("kernel"), own: value("debian") != "",
		alone: value("alone") != "", notNvmet: value("nvmet"),
	}
	if strings.HasPrefix(file, "qemu/") {
		s.name, s.script, s.own = "qemu-"+s.name, qemuScript, true
	}
	s.limit, err = strconv.ParseFloat(cmp.Or(value("limit"), "240"), 64)
	if err != nil || len(s.variants) == 0 {
		return s, fmt.Errorf("%s: limit %q, variants %q", file, value("limit"), s.variants)
	}
	return s, nil
}

// headValue returns the value of a key in the head of a script. Several lines form one list.
func headValue(script []byte, key string) string {
	var values []string
	for _, m := range regexp.MustCompile(`(?m)^# `+key+`:[ \t]*(.*)$`).FindAllSubmatch(script, -1) {
		values = append(values, string(m[1]))
	}
	return strings.Join(values, " ")
}

// everything returns all jobs, in full except for those of which only a sample is ever run.
func everything(all []scenario) []job {
	var jobs []job
	for i := range all {
		for _, v := range all[i].variants {
			jobs = append(jobs, newJob(&all[i], v, full))
		}
		for _, v := range all[i].soak {
			jobs = append(jobs, newJob(&all[i], v, sampled))
		}
	}
	return jobs
}

// matching returns the jobs named by the pattern of -run.
func matching(jobs []job, pattern string) []job {
	patterns := strings.Split(pattern, "/")[1:]
	return slices.DeleteFunc(jobs, func(j job) bool {
		for i, part := range strings.Split(j.name(), "/") {
			if i < len(patterns) && !regexp.MustCompile(patterns[i]).MatchString(part) {
				return true
			}
		}
		return false
	})
}

func smokeSet(all []scenario) []job {
	var jobs []job
	for i := range all {
		for _, v := range all[i].smoke {
			jobs = append(jobs, newJob(&all[i], v, smoke))
		}
	}
	return jobs
}

// A sample takes about four minutes, in as many kernels at once as a small machine has CPUs. Jobs
// that run at the same time rarely end at the same time.
const sampleSeconds, sampleBoots = 200, 2

// sample chooses jobs that take at most seconds, by their expected durations. Each scenario is
// chosen for one variant, with five times the weight if it covers a change.
func sample(all []scenario, seed uint64, seconds float64, expected durations,
	changed map[string]bool,
) []job {
	random := rand.New(rand.NewPCG(seed, 1))
	type candidate struct {
		job
		key float64
	}
	var list []candidate
	for i := range all {
		s := &all[i]
		weight := 1.0
		for _, c := range append(s.covers, s.file()) {
			if changed[c] {
				weight = 5
			}
		}
		// In the order of these keys, each scenario is drawn by weight from the remaining ones.
		key := math.Pow(random.Float64(), 1/weight)
		variant := s.variants[random.IntN(len(s.variants))]
		list = append(list, candidate{newJob(s, variant, sampled), key})
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(b.key, a.key) })
	var jobs []job
	for _, c := range list {
		if d := expected.of(c.job); d <= seconds {
			seconds -= d
			jobs = append(jobs, c.job)
		}
	}
	return jobs
}

// file returns the script of a scenario, as a path in the tree.
func (s *scenario) file() string {
	if name, ok := strings.CutPrefix(s.name, "qemu-"); ok {
		return "tests/lab/qemu/scenarios/" + name + ".sh"
	}
	return "tests/lab/scenarios/" + s.name + ".sh"
}

// bootSeconds is the duration of the jobs in a boot: many scenarios follow each other, and boots
// that run at the same time are balanced.
const bootSeconds = 60

// group puts jobs with the same kernel and settings into boots, in random order, longest boots
// first.
func group(jobs []job, seed uint64, expected durations) [][]job {
	jobs = slices.Clone(jobs)
	rand.New(rand.NewPCG(seed, 2)).Shuffle(len(jobs), func(i, j int) {
		jobs[i], jobs[j] = jobs[j], jobs[i]
	})
	var boots [][]job
	long := func(boot []job) (sum float64) {
		for _, j := range boot {
			sum += expected.of(j)
		}
		return sum
	}
	open := map[string]int{} // by their needs, the boot with room
	for _, j := range jobs {
		cpus := j.cpus
		if strings.HasPrefix(j.variant, "siw") {
			cpus = "1" // as in run.sh
		}
		need := fmt.Sprint(cpus, j.parameter, j.mode)
		i, ok := open[need]
		if !ok || j.own || long(boots[i])+expected.of(j) > bootSeconds {
			i = len(boots)
			boots = append(boots, nil)
		}
		boots[i] = append(boots[i], j)
		if !j.own {
			open[need] = i
		}
	}
	slices.SortStableFunc(boots, func(a, b []job) int { return cmp.Compare(long(b), long(a)) })
	return boots
}

// durations are in seconds, by the name of a run, as in connect/rxe, sample:fio/tcp or
// smoke:fio/tcp.
type durations map[string]float64

// usualDurations were measured on two quiet CPUs.
//
//go:embed durations
var usualDurations string

// loadDurations reads the durations that earlier runs on this machine have recorded in file, with
// the usual durations for everything else.
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

// of returns the expected duration of a job. Limits are six times the duration on a quiet machine.
func (d durations) of(j job) float64 {
	if s, ok := d[j.id()]; ok {
		return s
	}
	if s, ok := d[j.name()]; ok {
		return s
	}
	return j.limit / 6
}

// progress prints the progress of a run. Any goroutine may call its methods.
type progress struct {
	expected durations
	parallel int // kernels that run at once

	mu      sync.Mutex
	pending map[string]float64 // jobs that have not ended
	done    int
}

func newProgress(jobs []job, expected durations, parallel int) *progress {
	p := &progress{expected: expected, parallel: parallel, pending: map[string]float64{}}
	for _, j := range jobs {
		p.pending[j.id()] = expected.of(j)
	}
	return p
}

// end records that a job has ended and returns a line about it. seconds is negative if the job was
// skipped or has failed, in which case its duration is meaningless.
func (p *progress) end(id, result string, seconds float64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, id)
	p.done++
	if seconds >= 0 {
		p.expected[id] = seconds
	}
	left := 0.0
	for _, s := range p.pending {
		left += s
	}
	return fmt.Sprintf("lab: %d of %d, about %.0f min left: %s %s", p.done, p.done+len(p.pending),
		left/float64(p.parallel)/60, id, result)
}

func TestSampled(t *testing.T) {
	all := testutil.Value(scenarios())(t)
	usual := testutil.Value(loadDurations(os.DevNull))(t)
	changed := map[string]bool{"backend/wrap": true} // of faults
	chosen := map[string]bool{}
	faults, unchanged := 0, 0
	for seed := range uint64(300) {
		jobs := sample(all, seed, sampleSeconds*sampleBoots, usual, nil)
		again := sample(all, seed, sampleSeconds*sampleBoots, usual, nil)
		sum := 0.0
		for i, j := range jobs {
			testutil.MustTrue(t, j.name() == again[i].name(),
				"seed %d chooses differently the second time", seed)
			sum += usual.of(j)
			chosen[j.name()] = true
		}
		testutil.True(t, sum <= sampleSeconds*sampleBoots, "seed %d: %v s", seed, sum)
		isFaults := func(j job) bool { return j.scenario.name == "faults" }
		if slices.ContainsFunc(sample(all, seed, 100, usual, changed), isFaults) {
			faults++
		}
		if slices.ContainsFunc(sample(all, seed, 100, usual, nil), isFaults) {
			unchanged++
		}
	}
	for _, j := range everything(all) {
		testutil.True(t, chosen[j.name()] == (j.mode == full), "%s is in a sample: %t", j.name(),
			chosen[j.name()])
	}
	testutil.True(t, faults >= 2*unchanged,
		"what covers the change is in %d of 300 small samples, otherwise in %d", faults, unchanged)
}

func TestGroup(t *testing.T) {
	all := testutil.Value(scenarios())(t)
	d := testutil.Value(loadDurations(os.DevNull))(t)
	jobs := everything(all)
	boots := group(jobs, 1, d)
	n := 0
	for _, b := range boots {
		n += len(b)
		sum := 0.0
		for _, j := range b {
			sum += d.of(j)
			siw := strings.HasPrefix(j.variant, "siw")
			if j.parameter != b[0].parameter || j.script != b[0].script ||
				j.cpus != b[0].cpus && !siw && !strings.HasPrefix(b[0].variant, "siw") {
				t.Errorf("%s and %s are in one boot", b[0].name(), j.name())
			}
			if j.own && len(b) > 1 {
				t.Errorf("%s is not the only one in its boot", j.name())
			}
		}
		testutil.True(t, len(b) <= 1 || sum <= bootSeconds, "a boot of %v s", sum)
	}
	testutil.True(t, n == len(jobs) && len(boots) != n, "%d of %d jobs in %d boots", n, len(jobs),
		len(boots))
}

func TestMatching(t *testing.T) {
	all := testutil.Value(scenarios())(t)
	for pattern, want := range map[string]int{
		"TestScenarios/connect": 10, "TestScenarios/connect/rxe$": 1, "TestScenarios/^fio$/siw": 1,
		"TestScenarios": len(everything(all)), "": len(everything(all)),
	} {
		got := matching(everything(all), pattern)
		testutil.True(t, len(got) == want, "%q names %d jobs, want %d", pattern, len(got), want)
	}
}

// TestCovers: a scenario covers every package of the target, and the covered directories exist.
func TestCovers(t *testing.T) {
	all := testutil.Value(scenarios())(t)
	covered := map[string]bool{}
	for _, s := range all {
		testutil.True(t, len(s.covers) != 0, "%s covers nothing", s.name)
		for _, dir := range s.covers {
			covered[dir] = true
			testutil.Equal(t, testutil.Err(os.Stat("../../"+dir)), nil, "%s", s.name)
		}
	}
	out := testutil.Value(exec.Command("go", "list", "-deps", "-f",
		"{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", "../../cmd/nvmf-target").Output())(t)
	root := testutil.Value(filepath.Abs("../.."))(t)
	packages := strings.Fields(string(out))
	for _, dir := range packages {
		dir = strings.TrimPrefix(dir, root+"/")
		testutil.True(t, covered[dir], "no scenario covers %s", dir)
	}
	testutil.True(t, len(packages) >= 30, "only %d packages", len(packages))
}

func TestProgress(t *testing.T) {
	file := filepath.Join(t.TempDir(), "durations")
	d, err := loadDurations(file)
	testutil.MustTrue(t, err == nil && d["connect/rxe"] > 0, "%v %v", d, err)
	jobs := []job{
		newJob(&scenario{name: "a"}, "tcp", full), newJob(&scenario{name: "b"}, "tcp", smoke),
		newJob(&scenario{name: "c", limit: 180}, "tcp", sampled),
	}
	d["a/tcp"], d["b/tcp"] = 60, 240
	p := newProgress(jobs, d, 2)
	for _, step := range []struct {
		id, want string
		seconds  float64
	}{
		{"a/tcp", "lab: 1 of 3, about 2 min left: a/tcp passed", 70},
		{"smoke:b/tcp", "lab: 2 of 3, about 0 min left: smoke:b/tcp passed", -1},
		{"sample:c/tcp", "lab: 3 of 3, about 0 min left: sample:c/tcp passed", 1},
	} {
		testutil.Equal(t, p.end(step.id, "passed", step.seconds), step.want, "")
	}
	testutil.Must(t, p.expected.save(file))
	d, err = loadDurations(file)
	testutil.True(t, err == nil && d["a/tcp"] == 70 && d["b/tcp"] == 240 && d["sample:c/tcp"] == 1,
		"after saving: %v, %v", d, err)
}
