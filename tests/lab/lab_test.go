//go:build lab

// Package lab runs the scenarios of scenarios/ and qemu/, each in a kernel of its own, against the
// target of this tree.
//
//	go test -tags lab -timeout 80m ./tests/lab
//
// That is a sample, chosen by a seed: NVMF_LAB_SEED=N chooses another one, NVMF_LAB_SOAK=1 runs
// everything, and so does -run for what it names. NVMF_LAB_TARGET=nvmet runs the kernel's own
// target instead, which tells whether a failure is the target's.
package lab

import (
	"bytes"
	"cmp"
	"errors"
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
	"time"
)

const (
	exitSkipped = 77  // the scenario gives the reason
	exitTimeout = 124 // see boot.sh
)

var lab struct {
	target   string // the binary
	seed     uint64 // of the sample, 0 for everything
	progress *progress
}

// qemuTests are the tests under QEMU: the scenario of qemu/scenarios and its transport.
var qemuTests = map[string][]string{
	"DebianKernel": {"main", "rxe"},
	"Systemd":      {"systemd", "rxe"},
	"Upgrade":      {"upgrade", "rxe"},
	"Disks":        {"disks", "tcp"},
	"NVMe":         {"nvme", "rxe"},
	"Virtio":       {"virtio", "rxe"},
	"DAX":          {"dax", "rxe"},
	"Memory":       {"memory", "rxe"},
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
	scripts := []string{"./install.sh", "./build-kernel.sh"}
	if !named() {
		scripts = append(scripts, "./qemu/build-image.sh")
	}
	for _, script := range scripts {
		if err := prepare(script); err != nil {
			return 1, err
		}
	}
	if lab.seed, err = sampleSeed(); err != nil {
		return 1, err
	}
	file := durationsFile()
	expected, err := loadDurations(file)
	if err != nil {
		return 1, err
	}
	names, err := planned()
	if err != nil {
		return 1, err
	}
	parallel, _ := strconv.Atoi(flag.Lookup("test.parallel").Value.String())
	lab.progress = newProgress(names, expected, parallel)
	code := m.Run()
	return code, lab.progress.expected.save(file)
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

// named says that -run chooses what runs.
func named() bool { return flag.Lookup("test.run").Value.String() != "" }

// sampleSeed is the seed of this run's sample, 0 if it is to run everything.
func sampleSeed() (uint64, error) {
	text := os.Getenv("NVMF_LAB_SEED")
	switch {
	case os.Getenv("NVMF_LAB_SOAK") != "" || text == "" && named():
		return 0, nil
	case text == "":
		text = strconv.Itoa(1 + rand.IntN(1000))
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil || seed == 0 {
		return 0, fmt.Errorf("NVMF_LAB_SEED=%s: want a number from 1 on", text)
	}
	fmt.Printf("lab: a sample; NVMF_LAB_SEED=%d repeats it, make soak runs everything\n", seed)
	return seed, nil
}

// durationsFile keeps the durations of earlier runs, beside the kernels (common.sh).
func durationsFile() string {
	dir := os.Getenv("NVMF_LAB_CACHE")
	if dir == "" {
		cache, _ := os.UserCacheDir()
		dir = filepath.Join(cache, "nvmf-target/lab")
	}
	return filepath.Join(dir, "durations")
}

// planned are the names of all tests that will run, none if -run chooses them.
func planned() ([]string, error) {
	if named() {
		return nil, nil
	}
	all, err := scenarios()
	names := []string{"Demo"}
	for _, s := range all {
		for _, v := range s.variants {
			names = append(names, s.name+"/"+v)
		}
	}
	for name := range qemuTests {
		names = append(names, name)
	}
	return names, err
}

// TestScenarios runs the scenarios, cheap ones first, as many at once as -parallel says. Subtests
// that call t.Parallel would start in any order.
func TestScenarios(t *testing.T) { runScenarios(t, false, lab.progress.parallel) }

// TestAlone runs scenarios that measure.
func TestAlone(t *testing.T) { runScenarios(t, true, 1) }

// runScenarios runs the scenarios that have to run alone, or the others.
func runScenarios(t *testing.T, alone bool, parallel int) {
	all, err := scenarios()
	if err != nil {
		t.Fatal(err)
	}
	type run struct {
		scenario
		variant, name string
	}
	var runs []run
	for _, s := range all {
		for _, v := range s.variants {
			if s.alone == alone {
				runs = append(runs, run{s, v, s.name + "/" + v})
			}
		}
	}
	expected := lab.progress.expected
	slices.SortStableFunc(runs, func(a, b run) int {
		return cmp.Compare(expected.of(a.name), expected.of(b.name))
	})
	queue := make(chan run, len(runs))
	for _, r := range runs {
		queue <- r
	}
	close(queue)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for r := range queue {
				t.Run(r.name, func(t *testing.T) {
					skipUnsampled(t, &r.scenario, r.variant, r.name)
					runScript(t, r.name, "./run.sh", r.scenario.name, r.variant)
				})
			}
		})
	}
	workers.Wait()
}

// skipUnsampled skips a variant that is not in the sample of this run.
func skipUnsampled(t *testing.T, s *scenario, variant, name string) {
	chosen := s.sampled(lab.seed)
	if lab.seed == 0 || slices.Contains(chosen, variant) {
		return
	}
	fmt.Println(lab.progress.end(name, "is left to make soak", -1))
	t.Skipf("left to make soak: this sample has %s of %s",
		cmp.Or(strings.Join(chosen, ", "), "nothing"), s.name)
}

// TestDemo runs what "make demo" shows.
func TestDemo(t *testing.T) {
	t.Parallel()
	runScript(t, "Demo", "./demo.sh", "LAB=uml")
}

// TestDebianKernel runs the main scenarios on Debian's unmodified kernel.
func TestDebianKernel(t *testing.T) { runQEMU(t, "DebianKernel", "") }

// TestSystemd runs the unit of packaging/ under the systemd of the same image.
func TestSystemd(t *testing.T) { runQEMU(t, "Systemd", "has no unit file") }

// TestUpgrade replaces the installed .deb by the next version while fio runs.
func TestUpgrade(t *testing.T) { runQEMU(t, "Upgrade", "has no package") }

// TestDisks has "nvmf-target disks" query the drives that QEMU emulates.
func TestDisks(t *testing.T) { runQEMU(t, "Disks", "lists no disks") }

// TestNVMe serves the NVMe drives that QEMU emulates.
func TestNVMe(t *testing.T) { runQEMU(t, "NVMe", "sends other commands to drives") }

// TestVirtio has fio verify a virtio disk, which the user-mode kernel does not have.
func TestVirtio(t *testing.T) { runQEMU(t, "Virtio", "") }

// TestDAX serves files on memory that the kernel takes for persistent.
func TestDAX(t *testing.T) { runQEMU(t, "DAX", "maps no files") }

// TestMemory checks the placement of memory on a machine with NUMA nodes and huge pages.
func TestMemory(t *testing.T) { runQEMU(t, "Memory", "has no memory of a process") }

// runQEMU runs a test under QEMU. why, if not empty, is the reason why the kernel's target cannot
// run it.
func runQEMU(t *testing.T, name, why string) {
	t.Parallel()
	if referenceTarget() && why != "" {
		t.Skip("the kernel's target " + why)
	}
	if name != "Systemd" {
		skipUnsampled(t, &qemuSampled, name, name)
	}
	runScript(t, name, "./qemu/run.sh", qemuTests[name]...)
}

// TestVersion: the binary that the lab and the demo use knows its version.
func TestVersion(t *testing.T) {
	if referenceTarget() {
		t.Skip("the kernel's target has no version")
	}
	out, err := exec.Command(lab.target, "version").CombinedOutput()
	if err != nil || strings.Contains(string(out), "devel") {
		t.Errorf("%v: %s", err, out)
	}
}

// runScript runs a scenario and shows its log if it fails, and a summary with -v and -run.
func runScript(t *testing.T, name, script string, args ...string) {
	t.Helper()
	if referenceTarget() {
		args = append(args, "TARGET=nvmet")
	} else {
		args = append(args, "TARGET_BIN="+lab.target)
	}
	if lab.seed != 0 {
		args = append(args, "SAMPLE="+strconv.FormatUint(lab.seed, 10))
	}
	out := t.TempDir()
	cmd := exec.Command(script, args...)
	cmd.Env = append(os.Environ(), "NVMF_LAB_OUT="+out)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	result, counted := fmt.Sprintf("passed in %.0f s", took.Seconds()), took
	var exit *exec.ExitError
	skipped := errors.As(err, &exit) && exit.ExitCode() == exitSkipped
	if err != nil {
		result, counted = "FAILED", -1
	}
	if skipped {
		result = "was skipped"
	}
	fmt.Println(lab.progress.end(name, result, counted))
	switch {
	case err == nil:
		if testing.Verbose() && named() {
			t.Log(summary(log.String()))
		}
	case skipped:
		t.Skip(skipReason(log.String()))
	case exit != nil && exit.ExitCode() == exitTimeout:
		err = fmt.Errorf("not done after %v", took.Round(time.Second))
	}
	if err != nil && !skipped {
		t.Fatalf("%s: %v\nThe end of its log:\n%s\nThe whole log:\n%s", name, err,
			end(log.String()), log.String())
	}
}

// end is what a failure usually is told in.
func end(log string) string {
	lines := strings.Split(log, "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// summary is the scenario's own output, without the kernel's boot messages.
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
