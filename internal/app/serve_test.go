package app_test

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nvmf-target.yaml")
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

const validFile = `
listeners: [{transport: tcp, address: 127.0.0.1, port: 0}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:test
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB}]
reactors: {count: 1, memory: 8MiB}
`

// startServe starts a process that serves validFile, see main_test.go, and returns the lines that
// it prints. child.Env is added to the environment of this process. The child is killed after
// testTimeout.
func startServe(t *testing.T, child *exec.Cmd) *bufio.Scanner {
	t.Helper()
	child.Env = append(append(os.Environ(), serveFile+"="+writeConfig(t, validFile),
		"RUNTIME_DIRECTORY="+t.TempDir()), child.Env...) // of the control socket
	stdout := testutil.Value(child.StdoutPipe())(t)
	testutil.Must(t, child.Start())
	kill := time.AfterFunc(testTimeout, func() { _ = child.Process.Kill() })
	t.Cleanup(func() { kill.Stop() })
	return bufio.NewScanner(stdout)
}

// address returns the address that such a process announces first.
func address(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	testutil.MustTrue(t, lines.Scan(), "the target does not start")
	_, addr, _ := strings.Cut(lines.Text(), " on tcp ")
	return addr
}

// TestSignals: a real process reports when it is ready, survives SIGHUP, and exits with code 0
// after SIGTERM or SIGINT.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			notified, socket := notifySocket(t)
			child := exec.Command(os.Args[0])
			child.Env = []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=20000"}
			stderr := testutil.Value(child.StderrPipe())(t)
			lines := startServe(t, child)
			var said []string
			for len(said) < 3 && lines.Scan() {
				said = append(said, lines.Text())
			}
			testutil.True(t, len(said) == 3 && strings.HasPrefix(said[0],
				"nvmf-target test serves 1 subsystem with 1 namespace on tcp 127.0.0.1:") &&
				said[1] == "  namespace 1 of "+testNQN+": ram" && strings.HasPrefix(said[2],
				"  nvme connect -t tcp -a 127.0.0.1 -s "), "printed %q", said)
			expectNotification(t, notified, "READY=1\nSTATUS="+said[0])
			expectNotification(t, notified, "WATCHDOG=1")
			_ = child.Process.Signal(syscall.SIGHUP)
			expectNotification(t, notified, "RELOADING=1\nMONOTONIC_USEC=")
			expectNotification(t, notified, "READY=1\nSTATUS="+said[0])
			_ = child.Process.Signal(sig)
			expectNotification(t, notified, "STOPPING=1\nSTATUS=draining")
			rest, _ := io.ReadAll(stderr)
			err := child.Wait()
			testutil.True(t, err == nil, "%v; the end of its log:\n%s", err, rest)
		})
	}
}

func notifySocket(t *testing.T) (*net.UnixConn, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	c := testutil.Value(
		net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"}))(t)
	t.Cleanup(func() { c.Close() })
	return c, name
}

// expectNotification waits for a notification. want is all of it or, up to a "=", its beginning.
// Signs of life in between are skipped.
func expectNotification(t *testing.T, c *net.UnixConn, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testTimeout))
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		if got := string(b[:n]); err == nil && (got == want ||
			strings.HasSuffix(want, "=") && strings.HasPrefix(got, want)) {
			return
		} else if err != nil || got != "WATCHDOG=1" {
			t.Fatalf("notified %q, %v, want %q", got, err, want)
		}
	}
}

func TestServeReportsProblems(t *testing.T) {
	err := app.Serve("testdata/none.yaml", "test", io.Discard, io.Discard)
	testutil.Fails(t, err, "no such file", "")
}

// TestHangup: SIGHUP applies the file. If it is broken (C11), nothing changes and the log has the
// reason. In any case connected hosts stay connected.
func TestHangup(t *testing.T) {
	file := writeConfig(t, validFile)
	s := started(t, app.Options{Load: loader(file)})
	before := s.Connect(s.TCP(), hostOptions(testNQN))
	signals, hangups, ended := make(chan os.Signal), make(chan os.Signal), make(chan error, 1)
	go func() { ended <- s.Handle(signals, hangups) }()
	hangup := func(text, done string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		hangups <- syscall.SIGHUP
		testutil.Until(t, "the log says: "+done, func() bool {
			return strings.Contains(s.Log.String(), done) || len(ended) > 0
		})
		if len(ended) > 0 {
			t.Fatalf("the program ended: %v", <-ended)
		}
		testutil.Equal(t, before.Err(), nil, "a host lost its connection")
		writeAndRead(t, s.TCP())
	}
	hangup("subsystems: [\n", "the configuration was not changed")
	const more = testNQN + "-more"
	hangup(strings.Replace(validFile, "reactors:", `  - nqn: `+more+`
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB}]
reactors:`, 1), "the configuration was applied")
	s.Connect(s.TCP(), hostOptions(more))
	signals <- syscall.SIGTERM
	testutil.Check(t, testutil.Receive(t, "the end after SIGTERM", ended))
}

// TestReloadsTakeTurns: a reload reads the file while no other one applies an earlier reading, so
// that the last one to end has read the file last.
func TestReloadsTakeTurns(t *testing.T) {
	var s *harness.Harness
	c := parse(t, anyPort)
	var free []bool
	s = newServer(t, app.Options{Config: c, Load: func(...config.Option) (*config.Config, error) {
		release, ok := s.Engine().TryHold()
		if ok {
			release()
		}
		free = append(free, ok)
		return c, nil
	}})
	testutil.Must(t, s.Start())
	testutil.Check(t, testutil.Err(s.Reload()))
	testutil.True(t, len(free) != 0 && !free[len(free)-1], "another reload can begin: %v", free)
}

// TestLogThatNobodyReads: with a full pipe as standard error the target starts, serves and ends,
// and once it is read, its log is there.
func TestLogThatNobodyReads(t *testing.T) {
	for _, read := range []bool{true, false} {
		r, w := fullPipe(t)
		child := exec.Command(os.Args[0])
		child.Stderr = w
		// Without it, a binary with -cover complains when it exits.
		child.Env = []string{"GOCOVERDIR=" + cmp.Or(os.Getenv("GOCOVERDIR"), t.TempDir())}
		if !read {
			child.Env = append(child.Env, hastyEnd+"=1")
		}
		addr := address(t, startServe(t, child))
		writeAndRead(t, host.TCP{Addr: netip.MustParseAddrPort(addr)})
		var log []byte
		ended := make(chan struct{})
		_ = w.Close()
		go func() {
			defer close(ended)
			if read {
				log, _ = io.ReadAll(r)
			}
		}()
		_ = child.Process.Signal(syscall.SIGTERM)
		testutil.Equal(t, child.Wait(), nil, "read %v", read)
		if <-ended; read && !strings.Contains(string(log), "msg=\"reactors started\"") {
			t.Errorf("the log is not there: %q", bytes.TrimLeft(log, "x"))
		}
		_ = r.Close()
	}
}

// TestLogWhoseReaderEnded: with a closed pipe as standard error the target serves and ends as
// usual.
func TestLogWhoseReaderEnded(t *testing.T) {
	r, w, err := os.Pipe()
	testutil.Must(t, errors.Join(err, r.Close()))
	child := exec.Command(os.Args[0])
	child.Stderr = w
	addr := address(t, startServe(t, child))
	_ = w.Close()
	writeAndRead(t, host.TCP{Addr: netip.MustParseAddrPort(addr)})
	_ = child.Process.Signal(syscall.SIGTERM)
	testutil.Check(t, child.Wait())
}

// fullPipe returns a pipe without room.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	testutil.Must(t, err)
	fd := int(w.Fd()) // this makes it block
	testutil.Value(unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, 4096))(t)
	testutil.Must(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, []byte("x"))
	}
	testutil.MustTrue(t, errors.Is(err, unix.EAGAIN), "%v", err)
	testutil.Must(t, unix.SetNonblock(fd, false))
	return r, w
}

// TestJournal: each line begins with its priority if standard error is the journal.
func TestJournal(t *testing.T) {
	file := testutil.Value(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	defer file.Close()
	var st unix.Stat_t
	testutil.Must(t, unix.Fstat(int(file.Fd()), &st))
	child := exec.Command(os.Args[0])
	child.Stderr = file
	child.Env = append(os.Environ(), fmt.Sprintf("JOURNAL_STREAM=%d:%d", st.Dev, st.Ino))
	address(t, startServe(t, child))
	_ = child.Process.Signal(syscall.SIGTERM)
	testutil.Check(t, child.Wait())
	text, _ := os.ReadFile(file.Name())
	for line := range strings.Lines(string(text)) {
		testutil.True(t, strings.HasPrefix(line, "<6>time="), "no priority: %s", line)
	}
	testutil.True(t, len(text) != 0, "no log")
}

// TestProgramsHoldNothingUp: while a plan, or a reload, waits for a program that prints a key,
// changes can be made, and the target stops at once.
func TestProgramsHoldNothingUp(t *testing.T) {
	dir := t.TempDir()
	hang, begun := filepath.Join(dir, "hang"), filepath.Join(dir, "begun")
	key := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
	testutil.Secret(t, key.Reveal())
	script := fmt.Sprintf("[ ! -e %s ] || { echo >>%s; sleep 1000; }; echo %s", hang, begun,
		key.Reveal())
	file := writeConfig(t, validFile+"hosts: [{nqn: nqn.2026-11.io.nvmf-target:host, "+
		"dhchap_key_command: [/bin/sh, -c, '"+script+"']}]\n")
	s := started(t, app.Options{Load: loader(file)})
	p, err := s.Engine().PlanOfReload(t.Context())
	testutil.MustTrue(t, err == nil && len(p.Changes) == 0, "%v, %v", p, err)
	testutil.Must(t, os.WriteFile(hang, nil, 0o600))
	results := make(chan error, 2)
	go func() {
		_, err := s.Engine().PlanOfReload(t.Context())
		results <- err
	}()
	go func() {
		_, err := s.Reload()
		results <- err
	}()
	testutil.Until(t, "the programs run", func() bool {
		b, _ := os.ReadFile(begun)
		return len(b) == 2
	})
	changes, err := s.Apply(s.Current())
	testutil.True(t, err == nil && len(changes) == 0, "%v, %v", changes, err)
	s.Stop()
	for range 2 {
		err := testutil.Receive(t, "the end of a reload", results)
		testutil.True(t, err != nil && strings.Contains(err.Error(), "the target stops"), "%v", err)
	}
}

// TestHangupDuringStart: a SIGHUP during the first reading of the configuration is carried out once
// the target has started.
func TestHangupDuringStart(t *testing.T) {
	key := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
	testutil.Secret(t, key.Reveal())
	once := filepath.Join(t.TempDir(), "once")
	script := fmt.Sprintf("[ -e %s ] || { echo >%s; kill -HUP $PPID; }; echo %s", once, once,
		key.Reveal())
	file := writeConfig(t, validFile+"hosts: [{nqn: nqn.2026-11.io.nvmf-target:host, "+
		"dhchap_key_command: [/bin/sh, -c, '"+script+"']}]\n")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), serveFile+"="+file, "RUNTIME_DIRECTORY="+t.TempDir())
	serves(t, child, "the configuration was applied")
	testutil.Check(t, testutil.Err(os.Stat(once)))
}

// TestProgramsInheritNothing: a program that prints a key has its three descriptors, and none of
// the running target.
func TestProgramsInheritNothing(t *testing.T) {
	key := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
	testutil.Secret(t, key.Reveal())
	list := filepath.Join(t.TempDir(), "list")
	// ls has another one, for the directory.
	script := fmt.Sprintf("ls -l /proc/self/fd >%s; echo %s", list, key.Reveal())
	file := writeConfig(t, validFile+"hosts: [{nqn: nqn.2026-11.io.nvmf-target:host, "+
		"dhchap_key_command: [/bin/sh, -c, '"+script+"']}]\n")
	s := started(t, app.Options{
		Load: loader(file), StateDir: t.TempDir(),
		ControlSocket: filepath.Join(t.TempDir(), "control.sock"),
	})
	testutil.Value(s.Engine().PlanOfReload(t.Context()))(t)
	b := testutil.Value(os.ReadFile(list))(t)
	n := strings.Count(string(b), " -> ")
	testutil.True(t, n == 4, "%d descriptors:\n%s", n, b)
}
