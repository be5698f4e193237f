package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/load"
	"github.com/nvmf-target/nvmf-target/nvme/host"
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

// server is a child process that serves on a port of the loopback address.
type server struct {
	cmd    *exec.Cmd
	log    bytes.Buffer
	port   int
	config string // the configuration file of a target
}

// start runs a command with all threads on cpu.
func start(cpu, port int, name string, args ...string) (*server, error) {
	s := &server{
		port: port,
		cmd:  exec.Command("taskset", append([]string{"-c", strconv.Itoa(cpu), name}, args...)...),
	}
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	return s, nil
}

// startFloor starts the server of the floor as a process: the subcommand floor-server.
func startFloor(cpu int, t floorTraffic) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	return start(cpu, port, self, "floor-server", strconv.Itoa(port), strconv.Itoa(cpu),
		string(text))
}

// floorServerMain is the main function of that process. Its arguments are the port, the CPU and the
// traffic.
func floorServerMain(args []string) error {
	if len(args) != 3 {
		return errors.New("floor-server takes: PORT CPU TRAFFIC")
	}
	port, err := strconv.Atoi(args[0])
	cpu, err2 := strconv.Atoi(args[1])
	var t floorTraffic
	if err := errors.Join(err, err2, json.Unmarshal([]byte(args[2]), &t)); err != nil {
		return fmt.Errorf("floor-server: %w", err)
	}
	return serveFloor(port, cpu, t)
}

const (
	benchNQN = "nqn.2026-11.io.nvmf-target:bench"
	// namespaceSize is larger than any cache.
	namespaceSize = 256 << 20
	blockSize     = 4096
)

// startTarget starts a target that serves a RAM namespace with all threads on cpu. command is a
// program and the arguments before the ones of nvmf-target. spin is reactors.spin, "" for the
// default.
func startTarget(cpu int, dir, spin string, command ...string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	if spin != "" {
		spin = ", spin: " + spin
	}
	config := filepath.Join(dir, fmt.Sprintf("bench-%d.yaml", port))
	text := fmt.Sprintf(`listeners:
  - {transport: tcp, address: 127.0.0.1, port: %d, on_unavailable: fail}
reactors: {cpus: [%d]%s}
tcp: {queue_depth: 1024, congestion_control: %s}
subsystems:
  - nqn: %s
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: %d, block_size: %d}]
`, port, cpu, spin, congestion, benchNQN, namespaceSize, blockSize)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	program := append([]string{"STATE_DIRECTORY=" + dir}, command...) // a private one
	s, err := start(cpu, port, "env", append(program, "serve", "--config", config)...)
	if err != nil {
		return nil, err
	}
	s.config = config
	if err := fillTarget(s.transport(false)); err != nil {
		return nil, fmt.Errorf("%w\nlog of the target:\n%s", errors.Join(err, s.stop()),
			s.log.String())
	}
	return s, nil
}

const hostNQN = "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5"

// connect connects workloads to a target, which may still be starting.
func connect(t host.Transport, list ...load.Workload) (*load.Load, error) {
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	h := host.Options{
		HostNQN: hostNQN, HostID: [16]byte{15: 1}, SubNQN: benchNQN, Timeout: limit,
	}
	c, err := host.Connect(ctx, t, h)
	for ; err != nil; c, err = host.Connect(ctx, t, h) {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connect to the target: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.Close()
	return load.New(ctx, load.Options{Transport: t, Host: h}, list...)
}

// fillTarget writes the whole namespace once, so that reads find real data.
func fillTarget(t host.Transport) error {
	w := sequential("fill", 128<<10, 0).Workload
	w.Depth, w.Once = 1, true
	l, err := connect(t, w)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Run(0, into(new(load.Outcome)))
}

// transport connects an initiator to the server.
func (s *server) transport(digests bool) host.Transport {
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(s.port))
	return host.TCP{
		Addr: addr, HeaderDigest: digests, DataDigest: digests,
		CongestionControl: congestion,
	}
}

// stop ends the process, and kills it if it does not exit within 15 s.
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

// cpuTime returns the user and system time of the process in seconds (proc(5), stat fields 14 and
// 15, in ticks of 10 ms).
func (s *server) cpuTime() (user, system float64, err error) {
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
	return float64(u) / 100, float64(k) / 100, err
}
