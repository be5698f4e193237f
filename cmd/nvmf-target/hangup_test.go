package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// asProgram is a variable that makes the test binary run as the program.
const asProgram = "NVMF_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	testutil.Main(m)
}

// TestEarlyHangup sends SIGHUP repeatedly while the program starts, from before it drops its
// privileges until it serves. The program survives every signal. If its parent ignores SIGHUP, that
// holds from its first instruction.
func TestEarlyHangup(t *testing.T) {
	self := testutil.Value(os.Executable())(t)
	for who, program := range map[string][]string{
		"the program": {self}, "its parent": {"sh", "-c", `trap "" HUP; exec "$0" "$@"`, self},
	} {
		t.Run("ignored by "+who, func(t *testing.T) {
			early := false
			for i := 0; i < 10 && !early; i++ { // on a busy machine it may serve unobserved
				early = earlyHangup(t, program...)
			}
			testutil.True(t, early, "no signal was sent before the program served")
		})
	}
}

// earlyHangup reports whether a signal was sent before the program served.
func earlyHangup(t *testing.T, program ...string) (early bool) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	text := "listeners: [{transport: tcp, address: 127.0.0.1, port: 0}]\nsubsystems:\n" +
		"  - {nqn: nqn.2026-11.io.nvmf-target:a, allow_any_host: true, namespaces: " +
		"[{nsid: 1, backend: ram, size: 1MiB}]}\nreactors: {count: 1, memory: 8MiB}\n"
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	log := new(testutil.Log)
	child := exec.Command(program[0], append(program[1:], "serve", file)...)
	child.Env = append(os.Environ(), asProgram+"=1", "STATE_DIRECTORY="+dir,
		"RUNTIME_DIRECTORY="+dir)
	child.Stdout, child.Stderr = log, log
	testutil.Must(t, child.Start())
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for after, sig := range map[time.Duration]syscall.Signal{ // SIGQUIT prints its goroutines
		testutil.Patience / 2: syscall.SIGQUIT, testutil.Patience: syscall.SIGKILL,
	} {
		defer time.AfterFunc(after, func() { _ = child.Process.Signal(sig) }).Stop()
	}
	sent := 0
	testutil.Until(t, "the target serves", func() bool {
		serves := strings.Contains(log.String(), " on tcp ")
		if !serves && sent == 0 && !ignores(child.Process.Pid) {
			return false
		}
		early = early || !serves
		sent++
		err := child.Process.Signal(syscall.SIGHUP)
		return err != nil || serves
	})
	testutil.Until(t, "a reload", func() bool {
		return strings.Contains(log.String(), "the configuration was applied") || len(ended) == 1
	})
	_ = child.Process.Signal(syscall.SIGTERM)
	err := <-ended
	testutil.True(t, err == nil, "after %d signals: %v\n%s", sent, err, log)
	return early
}

// ignores reports whether a process ignores SIGHUP, or has ended.
func ignores(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return true
	}
	_, after, _ := strings.Cut(string(b), "SigIgn:")
	var mask uint64
	_, err = fmt.Sscanf(after, "%x", &mask)
	return err != nil || mask&1 != 0 || strings.Contains(string(b), "State:\tZ")
}
