package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

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
		t.Errorf("counters that began again: %v", got)
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

// TestTopScreen: on a terminal a table replaces the one before, in the order of --sort, and fits.
func TestTopScreen(t *testing.T) {
	ours, tty := pty(t)
	resize(t, tty, 56, 7)
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	root.SetOut(tty)
	ctx, cancel := context.WithCancel(t.Context())
	root.SetArgs([]string{"top", "--interval", "100ms", "--socket", serve(t, busySource())})
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	b := make([]byte, 1<<16)
	var text string
	for strings.Count(text, clearScreen) < 3 {
		text += string(b[:testutil.Value(ours.Read(b))(t)])
	}
	cancel()
	testutil.True(t, errors.Is(<-done, context.Canceled), "top goes on")
	table := strings.Split(text, clearScreen)[1]
	lines := strings.Split(strings.TrimSuffix(table, "\r\n"), "\r\n")
	testutil.Equal(t, len(lines), 6, "lines of\n%s", table)
	for _, l := range lines {
		testutil.True(t, utf8.RuneCountInString(l) <= 56, "too wide: %q", l)
	}
	i, j := strings.Index(table, "disk0 2"), strings.Index(table, "disk0 1")
	testutil.True(t, 0 < i && i < j, "not the busiest first:\n%s", table)
	testutil.True(t, strings.Contains(table, "P50") && !strings.Contains(table, "MOST IN"),
		"not the columns with room:\n%s", table)
}

// TestTopPrints: without a terminal top prints the requested number of tables or objects.
func TestTopPrints(t *testing.T) {
	src := busySource()
	src.Connections = func(context.Context) ([]observed.Connection, error) {
		return []observed.Connection{{Host: "a\x1b[31m", Commands: 7}}, nil
	}
	socket := serve(t, src)
	out, err := run(t, "top", "-n", "2", "-i", "100ms", "--socket", socket)
	testutil.True(t, err == nil && strings.Count(out, "NAMESPACE") == 2 && !strings.Contains(out,
		"\x1b") && strings.Contains(out, `"a\x1b[31m"`), "%s, %v", out, err)
	out, err = run(t, "top", "-n", "2", "-i", "100ms", "-o", "json", "--socket", socket)
	d := json.NewDecoder(bytes.NewBufferString(out))
	for range 2 {
		var r load
		if err := d.Decode(&r); err != nil || len(r.Namespaces) != 2 ||
			r.Namespaces[1].IOPS >= r.Namespaces[0].IOPS {
			t.Errorf("%v, %v", r, err)
		}
	}
	if _, end := d.Token(); err != nil || end != io.EOF || strings.Count(out, "\n") != 2 {
		t.Errorf("%s, %v", out, err)
	}
}
