//go:build lab

// Package lab runs the scenarios of scenarios/ and qemu/, each in a kernel of its own, against the
// target of this tree.
//
//	go test -tags lab -timeout 80m ./tests/lab
//
// NVMF_LAB_TARGET=nvmet runs the kernel's own target in its place, which tells whether a failure is
// the target's.
package lab

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	exitSkipped = 77  // the scenario says why
	exitTimeout = 124 // see boot.sh
)

var targetBinary string // built once, by TestMain

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nvmf-lab-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if !referenceTarget() {
		targetBinary = filepath.Join(dir, "nvmf-target")
		build := exec.Command("go", "build", "-o", targetBinary,
			"github.com/nvmf-target/nvmf-target/cmd/nvmf-target")
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "the target does not build: %v\n%s", err, out)
			return 1
		}
	}
	for _, script := range []string{"./install.sh", "./build-kernel.sh"} {
		prepare := exec.Command(script)
		prepare.Stderr = os.Stderr
		if err := prepare.Run(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", script, err)
			return 1
		}
	}
	return m.Run()
}

func referenceTarget() bool { return os.Getenv("NVMF_LAB_TARGET") == "nvmet" }

// scenario is one file of scenarios/, with what its head says about itself.
type scenario struct {
	name     string
	variants []string // transports
	alone    bool     // measures: nothing else may run
}

func scenarios(t *testing.T) []scenario {
	t.Helper()
	files, err := filepath.Glob("scenarios/*.sh")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	var all []scenario
	for _, file := range files {
		s := scenario{name: strings.TrimSuffix(filepath.Base(file), ".sh")}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s.variants = strings.Fields(headValue(text, "variants"))
		s.alone = headValue(text, "alone") != ""
		if len(s.variants) == 0 {
			t.Fatalf("%s names no variants", file)
		}
		all = append(all, s)
	}
	return all
}

func headValue(script []byte, key string) string {
	m := regexp.MustCompile(`(?m)^# ` + key + `:[ \t]*(.*)$`).FindSubmatch(script)
	if m == nil {
		return ""
	}
	return string(m[1])
}

func TestScenarios(t *testing.T) {
	for _, s := range scenarios(t) {
		for _, variant := range s.variants {
			t.Run(s.name+"/"+variant, func(t *testing.T) {
				if !s.alone {
					t.Parallel()
				}
				runScript(t, "./run.sh", s.name, variant)
			})
		}
	}
}

// TestDebianKernel runs the main scenarios on Debian's unmodified kernel.
func TestDebianKernel(t *testing.T) {
	runScript(t, "./qemu/run.sh", "main", "rxe")
}

// TestDemo runs what "make demo" shows.
func TestDemo(t *testing.T) {
	t.Parallel()
	runScript(t, "./demo.sh")
}

// TestSystemd runs what packaging/ holds under the systemd of the same image.
func TestSystemd(t *testing.T) {
	if referenceTarget() {
		t.Skip("the kernel's target has no unit file")
	}
	runScript(t, "./qemu/run.sh", "systemd", "rxe")
}

// TestDisks has "nvmf-target disks" ask the drives that QEMU emulates.
func TestDisks(t *testing.T) {
	if referenceTarget() {
		t.Skip("the kernel's target lists no disks")
	}
	runScript(t, "./qemu/run.sh", "disks", "tcp")
}

// TestNVMe serves the NVMe drives that QEMU emulates.
func TestNVMe(t *testing.T) {
	if referenceTarget() {
		t.Skip("the kernel's target sends commands to drives in another way")
	}
	runScript(t, "./qemu/run.sh", "nvme", "rxe")
}

// TestVirtio has fio verify a virtio disk, which the user-mode kernel does not have.
func TestVirtio(t *testing.T) {
	runScript(t, "./qemu/run.sh", "virtio", "rxe")
}

// TestDAX serves files on memory that the kernel takes for persistent.
func TestDAX(t *testing.T) {
	if referenceTarget() {
		t.Skip("the kernel's target maps no files")
	}
	runScript(t, "./qemu/run.sh", "dax", "rxe")
}

// TestMemory looks where memory lies on a machine with NUMA nodes and huge pages.
func TestMemory(t *testing.T) {
	if referenceTarget() {
		t.Skip("the kernel's target has no memory of a process")
	}
	runScript(t, "./qemu/run.sh", "memory", "rxe")
}

// runScript runs a scenario and shows its log when it fails, or with -v.
func runScript(t *testing.T, script string, args ...string) {
	t.Helper()
	if referenceTarget() {
		args = append(args, "TARGET=nvmet")
	} else {
		args = append(args, "TARGET_BIN="+targetBinary)
	}
	out := t.TempDir()
	cmd := exec.Command(script, args...)
	cmd.Env = append(os.Environ(), "NVMF_LAB_OUT="+out)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	start := time.Now()
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		if testing.Verbose() {
			t.Logf("%s", summary(log.String()))
		}
	case errors.As(err, &exit) && exit.ExitCode() == exitSkipped:
		t.Skip(skipReason(log.String()))
	case errors.As(err, &exit) && exit.ExitCode() == exitTimeout:
		t.Fatalf("not done after %v\n%s", time.Since(start).Round(time.Second), log.String())
	default:
		t.Fatalf("%v\n%s", err, log.String())
	}
}

// summary is what the scenario itself said, without the kernel's boot messages.
func summary(log string) string {
	var keep []string
	for _, line := range strings.Split(log, "\n") {
		if strings.HasPrefix(line, "== ") || strings.HasPrefix(line, "   ") {
			keep = append(keep, line)
		}
	}
	return strings.Join(keep, "\n")
}

func skipReason(log string) string {
	for _, line := range strings.Split(log, "\n") {
		if reason, ok := strings.CutPrefix(line, "SKIP: "); ok {
			return reason
		}
	}
	return "the scenario gives no reason"
}
