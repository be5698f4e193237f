package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const anyCPU = -1

// pin locks the goroutine to its thread and the thread to cpu, unless that is anyCPU.
func pin(cpu int) error {
	if cpu == anyCPU {
		return nil
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// server is a child process that serves on port.
type server struct {
	cmd  *exec.Cmd
	log  bytes.Buffer
	port int
}

// start runs a command with every thread on cpu.
func start(cpu, port int, name string, args ...string) (*server, error) {
	s := &server{port: port, cmd: exec.Command("taskset", append([]string{"-c", strconv.Itoa(cpu), name}, args...)...)}
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	return s, nil
}

func startFloor(cpu int, shape floorShape) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return start(cpu, port, self, "floor-server", strconv.Itoa(port), strconv.Itoa(cpu),
		strconv.Itoa(shape.request), strconv.Itoa(shape.response))
}

const (
	benchNQN = "nqn.2026-11.io.nvmf-target:bench"
	// namespaceSize keeps the data well beyond the caches.
	namespaceSize = 256 << 20
	blockSize     = 4096
)

// startTarget serves a RAM namespace from program, with its reactor on cpu.
func startTarget(program string, cpu int, dir string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "bench.yaml")
	text := fmt.Sprintf(`listeners: [{transport: tcp, address: 127.0.0.1, port: %d, on_unavailable: fail}]
reactors: {cpus: [%d]}
subsystems:
  - nqn: %s
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: %d, block_size: %d}]
`, port, cpu, benchNQN, namespaceSize, blockSize)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return start(cpu, port, program, "serve", "--config", config)
}

// stop ends the process: at once if it does not stop by itself.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(15*time.Second, func() { _ = s.cmd.Process.Kill() })
	defer kill.Stop()
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// cpuTime is the user and system time the process has used (proc(5), stat fields 14 and 15, in ticks of 10 ms).
func (s *server) cpuTime() (user, system time.Duration, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, 0, fmt.Errorf("process %d: unexpected stat %q", s.cmd.Process.Pid, b)
	}
	u, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, 0, err
	}
	k, err := strconv.Atoi(fields[12])
	return time.Duration(u) * 10 * time.Millisecond, time.Duration(k) * 10 * time.Millisecond, err
}
