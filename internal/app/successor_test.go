package app_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// devices is a server that is to be replaced, with two ports of an RDMA device and a host.
type devices struct {
	*harness.Harness
	t         *testing.T
	fabric    *verbstest.Fabric
	listeners string
	c         *host.Controller
	events    <-chan nvme.AsyncEvent
}

func newDevices(t *testing.T) *devices {
	d := &devices{
		t: t, fabric: verbstest.New(verbstest.Options{}),
		listeners: "{transport: rdma, address: 10.0.0.1, tos: 8}, " +
			"{transport: rdma, address: 10.0.0.1, port: 4421}",
	}
	t.Cleanup(d.fabric.Close)
	d.fabric.AddHost("target", verbstest.RoCE("dev0", netip.MustParseAddr("10.0.0.1")))
	d.fabric.AddHost("host", verbstest.RoCE("dev0", netip.MustParseAddr("10.0.0.2")))
	d.Harness = started(t, app.Options{
		Config: parse(t, d.listeners), Verbs: d.fabric.Provider("target"),
		Sockets: newManager(t).sockets(),
	})
	d.c = testutil.Value(d.connect(4420))(t)
	d.events = testutil.Value(
		hosttest.Events(testutil.Context(t), d.c, nvme.EventNamespaceChanged))(t)
	return d
}

func (d *devices) connect(port uint16) (*host.Controller, error) {
	c, err := host.Connect(testutil.Context(d.t), host.RDMA{
		Provider: d.fabric.Provider("host"),
		Addr:     netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port),
	}, hostOptions(testNQN))
	if err == nil {
		d.t.Cleanup(c.Close)
	}
	return c, err
}

// TestSuccessorOfDevices: the successor listens at an RDMA device before the server asks its hosts
// to reset. So no host is rejected, whenever it connects.
func TestSuccessorOfDevices(t *testing.T) {
	d := newDevices(t)
	ctx := testutil.Context(t)
	mine, theirs := net.Pipe()
	var stack verbs.Provider
	var applied func()
	succeeded := make(chan error, 1)
	go func() {
		var err error
		stack, applied, err = app.Succeed(theirs, d.fabric.Provider("target"), nil)
		succeeded <- err
	}()
	testutil.Must(t, d.Prepare(ctx, mine, func() { t.Error("the successor was killed") }))
	d.Ping(d.c)
	_, err := d.Apply(parse(t, d.listeners))
	testutil.Is(t, err, engine.ErrReplaced, "a change that the successor has not read")
	connected := make(chan error, 3)
	connect := func(port uint16) {
		go func() {
			_, err := d.connect(port)
			connected <- err
		}()
	}
	connect(4421)
	stopped := make(chan error, 1)
	go func() { stopped <- d.Server.Stop(ctx) }()
	testutil.Equal(t, testutil.Receive(t, "an event", d.events), nvme.AsyncPersistentError, "event")
	d.c.Close() // as in a reset
	connect(4420)
	testutil.Check(t, testutil.Receive(t, "the end", stopped))
	testutil.Equal(t, len(succeeded), 0, "it goes on before the process has ended")
	testutil.Must(t, mine.Close()) // as the end of the process does
	testutil.Must(t, testutil.Receive(t, "the successor", succeeded))

	next := newServer(t, app.Options{
		// A port that the configuration has changed does not keep others from listening.
		Config: parse(t, strings.Replace(d.listeners, "tos: 8", "tos: 8, on_unavailable: fail", 1)),
		Verbs:  stack, Applied: applied,
	})
	testutil.Must(t, next.Start())
	for range 2 {
		testutil.Check(t, testutil.Receive(t, "the connection", connected))
	}
}

// TestSuccessorThatFails: if the successor cannot listen, or ends, the server listens again. Its
// connections stay.
func TestSuccessorThatFails(t *testing.T) {
	d := newDevices(t)
	for _, answer := range []string{"", `{"Err": "no such device"}`} {
		mine, theirs := net.Pipe()
		killed := make(chan struct{}, 1)
		go func() {
			_, _ = theirs.Write([]byte("{}\n"))
			var m struct{ Listen []any }
			err := json.NewDecoder(theirs).Decode(&m)
			testutil.True(t, err == nil && len(m.Listen) == 2, "it shall listen at %v, %v", m, err)
			_, err = d.connect(4420)
			testutil.True(t, err != nil, "two processes listen")
			_, _ = theirs.Write([]byte(answer))
			_ = theirs.Close()
		}()
		err := d.Prepare(testutil.Context(t), mine, func() { killed <- struct{}{} })
		testutil.True(t, err != nil && (answer == "" || err.Error() == "no such device"), "%v", err)
		testutil.Equal(t, len(killed), 1, "kills")
		testutil.Check(t, mine.Close())
		c := testutil.Value(d.connect(4420))(t)
		d.Ping(d.c)
		c.Close()
	}
	mine, theirs := net.Pipe()
	testutil.Fails(t, app.Hear(mine, time.Millisecond), "does not answer", "")
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	_, _, err := app.Succeed(theirs, d.fabric.Provider("target"), signals)
	testutil.Fails(t, err, "terminated", "")
	_, _ = mine.Close(), theirs.Close()
}

// TestSignalEndsBoth: a signal ends the successor, and the server, which still waits for hosts.
func TestSignalEndsBoth(t *testing.T) {
	c := parse(t, anyPort)
	c.ShutdownTimeout = time.Hour
	s := started(t, app.Options{Config: c})
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	testutil.Check(t, s.StopReplaced(sync.OnceFunc(s.Block()), signals))
}

// TestSuccessorElsewhere: listeners that the configuration no longer has neither keep others from
// their addresses nor stay.
func TestSuccessorElsewhere(t *testing.T) {
	for _, listener := range []string{
		"{transport: rdma, address: 10.0.0.1, tos: 16, on_unavailable: fail}",
		"{transport: rdma, address: 0.0.0.0, on_unavailable: fail}",
		"{transport: tcp, address: 127.0.0.1}",
	} {
		d := newDevices(t)
		d.c.Close()
		mine, theirs := net.Pipe()
		prepared := make(chan error, 1)
		go func() {
			prepared <- d.Prepare(testutil.Context(t), mine, func() {})
			d.Harness.Stop()
			_ = mine.Close()
		}()
		stack, applied, err := app.Succeed(theirs, d.fabric.Provider("target"), nil)
		testutil.Must(t, err)
		testutil.Must(t, <-prepared)
		next := started(t, app.Options{
			Config: parse(t, listener), Verbs: stack, Applied: applied,
		})
		_, err = d.connect(4421)
		testutil.True(t, err != nil, "%s: a listener is left", listener)
		next.Stop()
	}
}

// service is a target that has a fake systemd. Its next start hangs while hang exists.
type service struct {
	t           *testing.T
	notified    *net.UnixConn
	file, text  string
	hang, begun string
	at          netip.AddrPort
	client      *control.Client
	child       *exec.Cmd
	next        control.Succession // the result of restarting
}

func newService(t *testing.T) *service {
	dir := t.TempDir()
	key := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
	testutil.Secret(t, key.Reveal())
	s := &service{t: t, hang: filepath.Join(dir, "hang"), begun: filepath.Join(dir, "begun")}
	script := fmt.Sprintf("[ ! -e %[1]s ] || { echo $PPID >%[2]s.new; mv %[2]s.new %[2]s; "+
		"while [ -e %[1]s ]; do sleep 0.01; done; }; echo %[3]s", s.hang, s.begun, key.Reveal())
	port := testutil.FreePort(t)
	s.at = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	s.text = strings.Replace(validFile, "port: 0", fmt.Sprintf("port: %d", port), 1) +
		"hosts: [{nqn: nqn.2026-11.io.nvmf-target:other, dhchap_key_command: [/bin/sh, -c, '" +
		script + "']}]\n"
	s.file = writeConfig(t, s.text)
	var socket string
	s.notified, socket = notifySocket(t)
	s.client = control.NewClient(filepath.Join(dir, "control.sock"))
	t.Cleanup(s.client.Close)
	s.child = exec.Command(os.Args[0])
	s.child.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "INVOCATION_ID=1",
		serveFile+"="+s.file, "RUNTIME_DIRECTORY="+dir)
	testutil.Must(t, s.child.Start())
	s.cleanUp(s.child.Process.Pid)
	s.await("READY=1")
	return s
}

// cleanUp kills a process at the end of the test, if it has not ended, and fails if that is late.
func (s *service) cleanUp(pid int) {
	kill := time.AfterFunc(testTimeout, func() {
		s.t.Error("a process does not end")
		_ = syscall.Kill(pid, syscall.SIGKILL)
	})
	s.t.Cleanup(func() {
		kill.Stop()
		if !gone(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			testutil.Until(s.t, "the end of a process", func() bool { return gone(pid) })
		}
		_, _ = syscall.Wait4(pid, nil, 0, nil) // a successor is a child of this process
	})
}

// gone reports whether a process has ended. Nobody may have waited for it.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err != nil || strings.Contains(string(b), "State:\tZ")
}

// await waits for a notification with a state.
func (s *service) await(state string) {
	s.t.Helper()
	_ = s.notified.SetReadDeadline(time.Now().Add(testTimeout))
	b := make([]byte, 4096)
	for {
		n, err := s.notified.Read(b)
		testutil.MustTrue(s.t, err == nil, "%s: %v", state, err)
		if strings.HasPrefix(string(b[:n]), state) {
			return
		}
	}
}

// restarting begins a restart with a successor that hangs, and returns its process.
func (s *service) restarting() (pid int, result <-chan error) {
	s.t.Helper()
	_ = os.Remove(s.begun)
	testutil.Must(s.t, os.WriteFile(s.hang, nil, 0o600))
	ended := make(chan error, 1)
	go func() {
		var err error
		s.next, err = s.client.Restart(testutil.Context(s.t))
		ended <- err
	}()
	testutil.Until(s.t, "a successor", func() bool {
		b, _ := os.ReadFile(s.begun)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid != 0
	})
	s.cleanUp(pid)
	return pid, ended
}

// TestSuccessor: a successor replaces the process, and no host is refused meanwhile. If it refuses
// the configuration, or is killed, the process goes on.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	s := newService(t)
	serves := func() { t.Helper(); writeAndRead(t, host.TCP{Addr: s.at}) }
	ctx := testutil.Context(t)

	testutil.Must(t, os.WriteFile(s.file, []byte("subsystems: 1\n"), 0o600))
	_, err := s.client.Restart(ctx)
	testutil.Fails(t, err, "subsystems", "")
	testutil.Must(t, os.WriteFile(s.file, []byte(s.text), 0o600))
	serves()

	pid, result := s.restarting()
	_, err = s.client.Restart(ctx)
	testutil.Fails(t, err, "is being restarted", "")
	testutil.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	testutil.Fails(t, testutil.Receive(t, "the result", result), "it has ended", "")
	testutil.Must(t, os.Remove(s.hang))
	serves()

	next, err := s.client.Restart(ctx)
	testutil.Must(t, err)
	testutil.Equal(t, next.PID, s.child.Process.Pid, "process")
	testutil.Equal(t, next.ControlSocket, "", "another control socket")
	s.cleanUp(next.Successor)
	b := testutil.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", next.Successor)))(t)
	testutil.True(t, strings.Contains(string(b), fmt.Sprintf("PPid:\t%d\n", os.Getpid())),
		"it is not a child of the service manager: %s", b)
	s.await(fmt.Sprintf("STATUS=draining, then process %d goes on\nEXTEND_TIMEOUT_USEC=",
		next.Successor))
	s.await(fmt.Sprintf("MAINPID=%d", next.Successor))
	serves() // there may be no process yet that accepts the connections
	s.await("READY=1")
	_ = s.child.Wait()
	// Otherwise systemd would not start the service again if it has lost the successor.
	testutil.Equal(t, s.child.ProcessState.ExitCode(), 1, "exit code")

	pid, result = s.restarting()
	testutil.Must(t, syscall.Kill(next.Successor, syscall.SIGTERM))
	testutil.True(t, testutil.Receive(t, "the result", result) != nil, "it has succeeded")
	testutil.Until(t, "the end of both", func() bool { return gone(pid) && gone(next.Successor) })
}

// TestSuccessorOfKilled: if the process is killed, its successor goes on.
func TestSuccessorOfKilled(t *testing.T) {
	t.Parallel()
	s := newService(t)
	pid, result := s.restarting()
	testutil.Must(t, s.child.Process.Kill())
	_ = s.child.Wait()
	testutil.True(t, testutil.Receive(t, "the result", result) != nil, "it has succeeded")
	testutil.Must(t, os.Remove(s.hang))
	writeAndRead(t, host.TCP{Addr: s.at})
	s.await("READY=1")
	testutil.Must(t, syscall.Kill(pid, syscall.SIGTERM))
	testutil.Until(t, "its end", func() bool { return gone(pid) })
}

// TestSuccessorHangup: a SIGHUP while a successor starts is carried out by the successor, which
// answers clients where its configuration says.
func TestSuccessorHangup(t *testing.T) {
	t.Parallel()
	s := newService(t)
	moved := filepath.Join(t.TempDir(), "control.sock")
	testutil.Must(t, os.WriteFile(s.file, []byte(s.text+"control: {socket: "+moved+"}\n"), 0o600))
	pid, result := s.restarting()
	testutil.Must(t, s.child.Process.Signal(syscall.SIGHUP))
	s.await("RELOADING=1") // and waits
	testutil.Must(t, os.Remove(s.hang))
	testutil.Must(t, testutil.Receive(t, "the result", result))
	s.await("MAINPID=")
	s.await("READY=1")
	s.await("RELOADING=1")
	c := s.client.Successor(s.next)
	t.Cleanup(c.Close)
	status := testutil.Value(control.GetStatus.From(testutil.Context(t), c))(t)
	testutil.Equal(t, status.PID, pid, "process")
	_ = s.child.Wait()
	testutil.Must(t, syscall.Kill(pid, syscall.SIGTERM))
	testutil.Until(t, "its end", func() bool { return gone(pid) })
}
