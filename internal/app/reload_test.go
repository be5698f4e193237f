package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestHangup: SIGHUP applies the file. If it is broken (C11), nothing changes and the log has the
// reason. In any case connected hosts stay connected.
func TestHangup(t *testing.T) {
	file := writeConfig(t, validFile)
	log := new(testutil.Log)
	s := started(t, Options{Log: log.Logger(), Load: loader(file)})
	ctx := testutil.Context(t)
	transport := host.TCP{Addr: s.Addrs()[0].AddrPort}
	before := testutil.Value(host.Connect(ctx, transport, hostOptions(testNQN)))(t)
	defer before.Close()
	signals, hangups, ended := make(chan os.Signal), make(chan os.Signal), make(chan error, 1)
	go func() {
		p := &program{server: s, log: log.Logger(), out: io.Discard}
		ended <- p.run(signals, hangups, nil, nil)
	}()
	hangup := func(text, done string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		hangups <- syscall.SIGHUP
		testutil.Until(t, "the log says: "+done, func() bool {
			return strings.Contains(log.String(), done) || len(ended) > 0
		})
		if len(ended) > 0 {
			t.Fatalf("the program ended: %v", <-ended)
		}
		testutil.Equal(t, before.Err(), nil, "a host lost its connection")
		writeAndRead(t, transport)
	}
	hangup("subsystems: [\n", "the configuration was not changed")
	const more = testNQN + "-more"
	hangup(strings.Replace(validFile, "reactors:", `  - nqn: `+more+`
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB}]
reactors:`, 1), "the configuration was applied")
	c2 := testutil.Value(host.Connect(ctx, transport, hostOptions(more)))(t)
	c2.Close()
	signals <- syscall.SIGTERM
	testutil.Equal(t, <-ended, nil, "after SIGTERM")
}

// TestReloadsTakeTurns: a reload reads the file while no other one applies an earlier reading, so
// that the last one to end has read the file last.
func TestReloadsTakeTurns(t *testing.T) {
	var s *Server
	c := parse(t, anyPort)
	var free []bool
	s = newServer(t, Options{Config: c, Load: func(...config.Option) (*config.Config, error) {
		release, ok := s.engine.TryHold()
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

// TestManyHangups: several SIGHUPs that come before a reload cause one.
func TestManyHangups(t *testing.T) {
	hangups, end := catchHangups()
	defer end()
	seen := make(chan os.Signal, 16)
	signal.Notify(seen, syscall.SIGHUP)
	defer signal.Stop(seen)
	for range 10 {
		testutil.Must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
		<-seen
	}
	testutil.Receive(t, "SIGHUP", hangups)
	select {
	case <-hangups:
		t.Error("another one waits")
	default:
	}
}

// TestLogThatNobodyReads: with a full pipe as standard error the target starts, serves and ends,
// and once it is read, its log is there.
func TestLogThatNobodyReads(t *testing.T) {
	for _, read := range []bool{true, false} {
		r, w := fullPipe(t)
		child := exec.Command(os.Args[0])
		child.Stderr = w
		if !read {
			child.Env = []string{hastyEnd + "=1"}
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
		if <-ended; read && !strings.Contains(string(log), "msg=\"reactors run\"") {
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
