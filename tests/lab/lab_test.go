//go:build lab

// Package lab runs the scenarios of scenarios/ and qemu/ against the target of this tree.
//
//	go test -v -tags lab -timeout 60m ./tests/lab
//
// This runs the smoke set and a sample of the rest, chosen by a seed; NVMF_LAB_SEED=N repeats it.
// NVMF_TEST_SOAK=1 runs everything in full, and -run TestScenarios/NAME/TRANSPORT runs the named
// scenarios in full. NVMF_LAB_TARGET=nvmet runs the target of the kernel instead, to tell whether a
// failure is specific to this target.
package lab

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const (
	exitSkipped = 77  // the scenario gives the reason
	exitTimeout = 124 // see boot.sh
)

var lab struct {
	target   string // the binary
	seed     uint64 // of the sample
	smoke    []job
	sample   []job
	full     []job // in soak, or named by -run
	progress *progress
}

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "nvmf-lab-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if !referenceTarget() {
		lab.target = filepath.Join(dir, "nvmf-target")
		if err := prepare("../../scripts/build.sh", dir); err != nil {
			return 1, err
		}
	}
	for _, script := range []string{"./install.sh", "./build-kernel.sh"} {
		if err := prepare(script); err != nil {
			return 1, err
		}
	}
	file := durationsFile()
	expected, err := loadDurations(file)
	if err != nil {
		return 1, err
	}
	jobs, err := plan()
	if err != nil {
		return 1, err
	}
	if slices.ContainsFunc(jobs, func(j job) bool { return j.script == qemuScript }) {
		if err := prepare("./qemu/build-image.sh"); err != nil {
			return 1, err
		}
	}
	parallel, _ := strconv.Atoi(flag.Lookup("test.parallel").Value.String())
	lab.progress = newProgress(jobs, expected, parallel)
	code := m.Run()
	return code, lab.progress.expected.save(file)
}

// plan chooses the jobs.
func plan() ([]job, error) {
	all, err := scenarios()
	if err != nil {
		return nil, err
	}
	if lab.seed, err = sampleSeed(); err != nil {
		return nil, err
	}
	pattern := flag.Lookup("test.run").Value.String()
	switch {
	case testutil.Soaking() || runs(pattern, "TestScenarios", "TestAlone"):
		lab.full = matching(everything(all), pattern)
		fmt.Printf("lab: %d scenarios in full, in the order of NVMF_LAB_SEED=%d\n", len(lab.full),
			lab.seed)
	default:
		usual, err := loadDurations(os.DevNull)
		if err != nil {
			return nil, err
		}
		lab.smoke = smokeSet(all)
		base, changed := changes()
		lab.sample = sample(all, lab.seed, sampleSeconds*sampleBoots, usual, changed)
		fmt.Printf("lab: the smoke set, %d scenarios, and a sample of %d; NVMF_LAB_SEED=%d%s "+
			"repeats the sample, make soak runs everything\n", len(lab.smoke), len(lab.sample),
			lab.seed, base)
		fmt.Print("lab: the sample:")
		for _, j := range lab.sample {
			fmt.Print(" ", j.name())
		}
		fmt.Println()
	}
	return slices.Concat(lab.smoke, lab.sample, lab.full), nil
}

// runs reports whether a pattern of -run begins with the name of one of these tests.
func runs(pattern string, tests ...string) bool {
	return slices.ContainsFunc(tests, func(t string) bool {
		return strings.HasPrefix(strings.TrimPrefix(pattern, "^"), t)
	})
}

// prepare runs a script, and shows its messages.
func prepare(script string, args ...string) error {
	cmd := exec.Command(script, args...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	return nil
}

func referenceTarget() bool { return os.Getenv("NVMF_LAB_TARGET") == "nvmet" }

// sampleSeed returns the seed of this run.
func sampleSeed() (uint64, error) {
	text := cmp.Or(os.Getenv("NVMF_LAB_SEED"), strconv.Itoa(1+rand.IntN(1000)))
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil || seed == 0 {
		return 0, fmt.Errorf("NVMF_LAB_SEED=%s: want a number from 1 on", text)
	}
	return seed, nil
}

// changes returns the directories and scenarios that differ from NVMF_LAB_BASE, or from the fork
// point of this branch from origin/main, or from the state a day ago. It returns none if git does
// not know. base is the value for repeating the run.
func changes() (base string, changed map[string]bool) {
	commit := os.Getenv("NVMF_LAB_BASE")
	for _, args := range []string{
		"merge-base HEAD origin/main", "rev-list -n 1 --before=1.day HEAD",
	} {
		out := git(args)
		if commit == "" && len(out) > 0 && !slices.Equal(out, git("rev-parse HEAD")) {
			commit = out[0]
		}
	}
	changed = map[string]bool{}
	if commit == "" {
		return "", changed
	}
	for _, file := range git("diff --name-only " + commit) {
		changed[filepath.Dir(file)] = true
		changed[file] = true
	}
	return " NVMF_LAB_BASE=" + commit[:min(len(commit), 12)], changed
}

// git returns the lines that a command of git prints in the root directory, none if it fails.
func git(args string) []string {
	cmd := exec.Command("git", strings.Fields(args)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(out))
}

// durationsFile returns the file with the durations of earlier runs, beside the kernels
// (common.sh).
func durationsFile() string {
	dir := os.Getenv("NVMF_LAB_CACHE")
	if dir == "" {
		cache, _ := os.UserCacheDir()
		dir = filepath.Join(cache, "nvmf-target/lab")
	}
	return filepath.Join(dir, "durations")
}

// TestSmoke runs the smoke set in its shortest form.
func TestSmoke(t *testing.T) {
	if testutil.Soaking() {
		t.Skip("TestScenarios runs all of it in full")
	}
	runJobs(t, lab.smoke, lab.progress.parallel)
}

// TestSample runs a sample of everything else, without measurements.
func TestSample(t *testing.T) {
	if testutil.Soaking() {
		t.Skip("TestScenarios runs everything in full")
	}
	runJobs(t, lab.sample, lab.progress.parallel)
}

// TestScenarios runs everything in full, on as many kernels at once as -parallel allows.
func TestScenarios(t *testing.T) { runFull(t, false, lab.progress.parallel) }

// TestAlone runs the scenarios that measure.
func TestAlone(t *testing.T) { runFull(t, true, 1) }

func runFull(t *testing.T, alone bool, parallel int) {
	if lab.full == nil {
		var left []string
		all := testutil.Value(scenarios())(t)
		for _, j := range everything(all) {
			if j.alone == alone {
				left = append(left, j.name())
			}
		}
		t.Skip("left to make soak, in full: " + strings.Join(left, " "))
	}
	runJobs(t, slices.DeleteFunc(slices.Clone(lab.full), func(j job) bool {
		return j.alone != alone
	}), parallel)
}

// runJobs runs jobs as subtests, in as few kernels as their needs and balance allow.
func runJobs(t *testing.T, jobs []job, parallel int) {
	boots := group(jobs, lab.seed, lab.progress.expected)
	queue := make(chan []job, len(boots))
	for _, b := range boots {
		queue <- b
	}
	close(queue)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for boot := range queue {
				runBoot(t, boot)
			}
		})
	}
	workers.Wait()
}

// TestVersion: the binary that the lab and the demo use knows its version.
func TestVersion(t *testing.T) {
	if referenceTarget() {
		t.Skip("the kernel's target has no version")
	}
	out, err := exec.Command(lab.target, "version").CombinedOutput()
	testutil.True(t, err == nil && !strings.Contains(string(out), "devel"), "%v: %s", err, out)
}

// runBoot runs jobs one after another and shows the log of each failed job. For full runs it also
// shows a summary of the others with -v.
func runBoot(t *testing.T, boot []job) {
	if why := boot[0].notNvmet; why != "" && referenceTarget() {
		report(t, boot[0], exitSkipped, 0, "SKIP: not with the kernel's target, "+why)
		return
	}
	args := boot[0].args
	if boot[0].script == labScript {
		args = nil
		for _, j := range boot {
			args = append(args, j.scenario.name+"/"+j.variant)
		}
	}
	args = slices.Concat(args, boot[0].settings(lab.seed))
	if referenceTarget() {
		args = append(args, "TARGET=nvmet")
	} else {
		args = append(args, "TARGET_BIN="+lab.target)
	}
	cmd := exec.Command(boot[0].script, args...)
	cmd.Env = append(os.Environ(), "NVMF_LAB_OUT="+t.TempDir())
	if boot[0].script != labScript {
		cmd.Args = append([]string{"bash", "-c", timed, boot[0].name()}, cmd.Args...)
		cmd.Path = "/bin/bash"
	}
	out := testutil.Value(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	testutil.Must(t, cmd.Start())
	var log strings.Builder
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		log.WriteString(line)
		var code int
		var seconds float64
		var name string
		n, _ := fmt.Sscanf(line, "lab: end of %s exit code %d, %f s", &name, &code, &seconds)
		if n == 3 && len(boot) > 0 {
			report(t, boot[0], code, seconds, log.String())
			boot = boot[1:]
			log.Reset()
		}
		if err != nil {
			break
		}
	}
	err := cmd.Wait()
	for _, j := range boot {
		log.WriteString(fmt.Sprintf("FAIL: it did not run: %v\n", err))
		report(t, j, 1, 0, log.String())
	}
}

// timed runs a command and reports its end like a scenario of a list.
const timed = `"$@" && rc=0 || rc=$?; echo "lab: end of $0, exit code $rc, $SECONDS s"`

// report is the subtest of a finished job.
func report(t *testing.T, j job, code int, seconds float64, log string) {
	result, counted := fmt.Sprintf("passed in %.0f s", seconds), seconds
	if code != 0 {
		result, counted = "FAILED", -1
	}
	if code == exitSkipped {
		result = "was skipped"
	}
	fmt.Println(lab.progress.end(j.id(), result, counted))
	t.Run(j.name(), func(t *testing.T) {
		switch code {
		case 0:
			if testing.Verbose() && lab.full != nil {
				t.Log(summary(log))
			}
			return
		case exitSkipped:
			t.Skip(skipReason(log))
		}
		why := fmt.Sprintf("exit code %d", code)
		if code == exitTimeout {
			why = fmt.Sprintf("not done after %.0f s", seconds)
		}
		t.Fatalf("%s: %s\nThe end of its log:\n%s\nThe whole log:\n%s", j.name(), why, end(log),
			log)
	})
}

// end returns the part of a log that usually explains a failure.
func end(log string) string {
	lines := strings.Split(log, "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// summary returns the output of the scenario itself, without boot messages of the kernel.
func summary(log string) string {
	var lines []string
	for line := range strings.SplitSeq(log, "\n") {
		if strings.HasPrefix(line, "== ") || strings.HasPrefix(line, "   ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func skipReason(log string) string {
	for line := range strings.SplitSeq(log, "\n") {
		if reason, ok := strings.CutPrefix(line, "SKIP: "); ok {
			return reason
		}
	}
	return "the scenario gives no reason"
}
