package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func remote(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.IPv4Unspecified(), port) }

// TestRates: rates are the growth of counters, even if the counters or the connections are new.
func TestRates(t *testing.T) {
	conn := func(port uint16, age float64, n uint64) observed.Connection {
		return observed.Connection{
			Host: testHost, Remote: remote(port), Reactor: 1, AgeSeconds: age, Commands: n,
			ReadBytes: 10 * n, WrittenBytes: 20 * n, InFlight: 1,
		}
	}
	old := snapshot{
		at:          at,
		namespaces:  []observed.Namespace{{Subsystem: "s", NSID: 1, Reads: 100, BusySeconds: 1}},
		connections: []observed.Connection{conn(1, 9, 100), conn(2, 9, 1000)},
		reactors:    []observed.Reactor{{}, {Index: 1, AsleepSeconds: 10}},
	}
	now := snapshot{
		at: at.Add(2 * time.Second),
		namespaces: []observed.Namespace{
			{Subsystem: "s", NSID: 1, Reads: 300, Writes: 100, ReadBytes: 8192, BusySeconds: 2},
			{Subsystem: "s", NSID: 2, Reads: 300},
		},
		connections: []observed.Connection{
			conn(1, 11, 300), conn(3, 1, 50), conn(4, 60, 5000), // 3 is new, 4 was not seen
			{Remote: remote(5), AgeSeconds: 1, Reactor: 1, Commands: 2},
		},
		reactors: []observed.Reactor{{AsleepSeconds: 2}, {Index: 1, AsleepSeconds: 10.5}},
	}
	got := between(&old, &now)
	want := load{
		Time: now.at, Seconds: 2,
		Hosts: []rate{{testHost, 125, 1250, 2500, 3, 0, 0, 0, ""}},
		Namespaces: []rate{
			{"s 1", 150, 4096, 0, 0, 0.5, 0, 0, ""}, {Name: "s 2"},
		},
		Reactors: []rate{{Name: "0"}, {"1", 126, 1250, 2500, 3, 0.75, 0, 0, ""}},
	}
	testutil.True(t, fmt.Sprint(*got) == fmt.Sprint(want), "got  %v\nwant %v", *got, want)
	now.connections[0].Commands, now.namespaces[0].Reads = 2, 4 // a restarted process
	now.namespaces[0].Writes = 0
	if got := between(&old, &now); got.Hosts[0].IOPS != 26 || got.Namespaces[0].IOPS != 2 {
		t.Errorf("counters that began anew: %v", got)
	}
}

// busySource is a target with two namespaces; the second is busier.
func busySource() control.Source {
	src, calls := source(), new(atomic.Uint64)
	src.Namespaces = func() []observed.Namespace {
		n := calls.Add(1)
		return []observed.Namespace{
			{Subsystem: testSub, NSID: 1, Reads: n}, {Subsystem: testSub, NSID: 2, Reads: 9 * n},
		}
	}
	return src
}

// pty opens a pseudoterminal.
func pty(t *testing.T) (ours, tty *os.File) {
	t.Helper()
	ours = testutil.Value(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = ours.Close() })
	conn, err := ours.SyscallConn() // not Fd, after which Close would not end a Read
	testutil.Must(t, err)
	number := 0
	testutil.Must(t, conn.Control(func(fd uintptr) {
		testutil.Check(t, unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0))
		number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
	}))
	tty = testutil.Value(
		os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = tty.Close() })
	resize(t, tty, 120, 30)
	return ours, tty
}

func resize(t *testing.T, tty *os.File, width, height uint16) {
	t.Helper()
	size := unix.Winsize{Col: width, Row: height}
	testutil.Must(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &size))
}

// screen is the content of a terminal: the output since the cursor was last at its home.
type screen struct {
	t    *testing.T
	text chan string
	last string
}

func watch(t *testing.T, ours *os.File) *screen {
	s := &screen{t: t, text: make(chan string, 100)}
	go func() {
		defer close(s.text)
		b := make([]byte, 1<<16)
		for {
			n, err := ours.Read(b)
			if n > 0 {
				s.text <- string(b[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return s
}

// until waits for a screen that has a property.
func (s *screen) until(what string, has func(string) bool) {
	s.t.Helper()
	for !has(s.last) {
		text := testutil.Receive(s.t, fmt.Sprintf("%s after %q", what, s.last), s.text)
		testutil.MustTrue(s.t, text != "", "no %s: %q", what, s.last)
		s.last += text
		if i := strings.LastIndex(s.last, "\x1b[H"); i >= 0 {
			s.last = s.last[i:]
		}
	}
}

func termios(t *testing.T, tty *os.File) unix.Termios {
	t.Helper()
	v := testutil.Value(unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS))(t)
	return *v
}

// startTop runs top on a terminal.
func startTop(t *testing.T, tty *os.File, socket string) <-chan error {
	t.Helper()
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	root.SetIn(tty)
	root.SetOut(tty)
	root.SetArgs([]string{"top", "--interval", "100ms", "--socket", socket})
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(t.Context()) }()
	return done
}

// TestTopScreen: rows appear, are sorted by the pressed key, and fit the terminal.
func TestTopScreen(t *testing.T) {
	ours, tty := pty(t)
	before := termios(t, tty)
	s := watch(t, ours)
	done := startTop(t, tty, serve(t, busySource()))
	first, second := testSub+" 1", testSub+" 2"
	order := func(a, b string) func(string) bool {
		return func(text string) bool {
			i, j := strings.Index(text, a), strings.Index(text, b)
			return i >= 0 && i < j && strings.Contains(text, testHost) &&
				strings.Contains(text, "█")
		}
	}
	s.until("busiest namespace first", order(second, first))
	now := termios(t, tty)
	testutil.True(t, now.Lflag&unix.ECHO == 0, "the terminal prints keys")
	_, _ = ours.WriteString("xn")
	s.until("namespaces by name", order(first, second))
	resize(t, tty, 60, 8)
	testutil.Must(t, unix.Kill(os.Getpid(), unix.SIGWINCH))
	s.until("narrow screen", func(text string) bool {
		return strings.Contains(text, "\x1b[J") && strings.Count(text, "\n") == 7 &&
			strings.Contains(text, "…")
	})
	_, _ = ours.WriteString("q")
	testutil.Check(t, <-done)
	s.until("return to the screen before", func(text string) bool {
		return strings.HasSuffix(text, screenOff)
	})
	testutil.Equal(t, termios(t, tty), before, "the terminal is not what it was")
}

// TestTopEnds: however top ends, it restores the terminal.
func TestTopEnds(t *testing.T) {
	for name, end := range map[string]func(ours *os.File, stop func()){
		"q":           func(ours *os.File, _ func()) { _, _ = ours.WriteString("q") },
		"Ctrl-C":      func(ours *os.File, _ func()) { _, _ = ours.Write([]byte{interrupt}) },
		"SIGTERM":     func(*os.File, func()) { _ = unix.Kill(os.Getpid(), unix.SIGTERM) },
		"target ends": func(_ *os.File, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			ours, tty := pty(t)
			before := termios(t, tty)
			socket := filepath.Join(t.TempDir(), "c.sock")
			server := testutil.Value(control.Listen(control.Config{Socket: socket}, busySource(),
				slog.New(slog.DiscardHandler)))(t)
			defer server.Close()
			s := watch(t, ours)
			done := startTop(t, tty, socket)
			s.until("rows", func(text string) bool { return strings.Contains(text, testSub) })
			end(ours, func() { _ = server.Close() })
			err := <-done
			testutil.True(t, (err != nil) == (name == "target ends"), "%v", err)
			testutil.Equal(t, termios(t, tty), before, "the terminal is not what it was")
		})
	}
}

// TestTopPanics: a panic restores the terminal, too.
func TestTopPanics(t *testing.T) {
	_, tty := pty(t)
	before := termios(t, tty)
	term := testutil.Value(openTerminal(tty, tty))(t)
	func() {
		defer func() {
			testutil.True(t, recover() != nil, "no panic")
		}()
		_ = term.show(t.Context(), nil, time.Second)
	}()
	testutil.Equal(t, termios(t, tty), before, "the terminal is not what it was")
}

// TestTopPrints: without a terminal top prints the requested number of tables or objects.
func TestTopPrints(t *testing.T) {
	src := busySource()
	src.Connections = func(context.Context) ([]observed.Connection, error) {
		return []observed.Connection{{Host: "a\x1b[31m", Commands: 7}}, nil
	}
	socket := serve(t, src)
	out, err := run(t, "top", "-n", "2", "-i", "100ms", "--socket", socket)
	if err != nil || strings.Count(out, "NAMESPACE") != 2 || strings.Contains(out, "\x1b") ||
		!strings.Contains(out, `"a\x1b[31m"`) {
		t.Errorf("%s, %v", out, err)
	}
	out, err = run(t, "top", "-n", "2", "-i", "100ms", "-o", "json", "--socket", socket)
	d := json.NewDecoder(bytes.NewBufferString(out))
	for range 2 {
		var r load
		if err := d.Decode(&r); err != nil || len(r.Namespaces) != 2 ||
			r.Namespaces[1].IOPS <= r.Namespaces[0].IOPS {
			t.Errorf("%v, %v", r, err)
		}
	}
	if _, end := d.Token(); err != nil || end != io.EOF || strings.Count(out, "\n") != 2 {
		t.Errorf("%s, %v", out, err)
	}
}
