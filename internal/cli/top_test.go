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
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/bench"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
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
		Hosts:      []rate{{testHost, 125, 1250, 2500, 3, 0, 0, 0, ""}},
		Namespaces: []rate{{"s 1", 150, 4096, 0, 0, 0.5, 0, 0, ""}, {Name: "s 2"}},
		Reactors:   []rate{{Name: "0"}, {"1", 126, 1250, 2500, 3, 0.75, 0, 0, ""}},
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
	if err != nil || strings.Count(out, "NAMESPACE") != 2 || strings.Contains(out, "\x1b") ||
		!strings.Contains(out, `"a\x1b[31m"`) {
		t.Errorf("%s, %v", out, err)
	}
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

// TestDistribution: quantiles are of the commands between two snapshots, of all operations and
// hosts of a namespace.
func TestDistribution(t *testing.T) {
	latency := func(host string, fast, slow uint64) observed.Latency {
		return observed.Latency{
			Host: host, Subsystem: "s", NSID: 1,
			Buckets: []observed.LatencyBucket{
				{NS: 100_000, Count: fast}, {NS: 9_000_000, Count: slow},
			},
			IOs: fast + slow, Stages: []observed.LatencyStage{
				{Stage: "wait", MeanSeconds: 1e-6 * float64(fast)},
				{Stage: "backend", MeanSeconds: 1e-6 * float64(slow)},
			},
		}
	}
	old := snapshot{at: at, latency: distributions([]observed.Latency{
		latency("a", 1_000_000, 0), latency("b", 0, 1_000_000),
	})}
	now := snapshot{
		at: at.Add(1), namespaces: []observed.Namespace{{Subsystem: "s", NSID: 1}},
		latency: distributions([]observed.Latency{
			latency("a", 1_000_090, 0), latency("b", 0, 1_000_010),
		}),
	}
	r := between(&old, &now).Namespaces[0]
	testutil.True(t, r.P50 == 0.0001 && r.P99 == 0.009 && r.Stage == "wait", "%+v", r)
	r = between(&now, &now).Namespaces[0]
	testutil.True(t, r.P50 == 0 && r.cells("NAMESPACE")[5] == "-" && r.Stage == "",
		"without commands: %+v", r)
	now.latency = distributions([]observed.Latency{latency("a", 3, 0)}) // restarted
	r = between(&old, &now).Namespaces[0]
	testutil.True(t, r.P99 == 0.0001, "counted anew: %+v", r)
}

// TestEarlyEnd: the reason for an early end is printed once and gives the exit code.
func TestEarlyEnd(t *testing.T) {
	var out bytes.Buffer
	err := output(&out, &bench.Report{Target: &bench.Target{}, Error: "no answer"}, "", "")
	testutil.True(t, err != nil && strings.Count(out.String()+err.Error(), "no answer") == 1,
		"%s%v", &out, err)
	testutil.Check(t, output(&out, &bench.Report{Target: &bench.Target{}}, "", ""))
}

func TestDoctor(t *testing.T) {
	fine := doctor.Finding{Check: "clock", Severity: doctor.OK, Found: "tsc"}
	bad := func(s doctor.Severity) doctor.Finding {
		return doctor.Finding{
			Check: "listener", Severity: s, Found: "used by \x1b[2J", Why: "It " +
				"waits.", Fix: "stop it",
		}
	}
	for _, tc := range []struct {
		list []doctor.Finding
		text string
		err  error
	}{
		{[]doctor.Finding{fine}, "ok  clock  tsc\n", nil},
		{
			[]doctor.Finding{fine, bad(doctor.Note)}, "ok    clock     tsc\n" +
				"note  listener  \"used by \\x1b[2J\"\n                why: It waits.\n" +
				"                fix: stop it\n", nil,
		},
		{
			[]doctor.Finding{bad(doctor.Warning)}, "warning  listener  \"used by \\x1b[2J\"\n" +
				"                   why: It waits.\n                   fix: stop it\n", ErrWarnings,
		},
		{[]doctor.Finding{bad(doctor.Error), bad(doctor.Warning)}, "", ErrErrors},
	} {
		run := func(args ...string) (string, error) {
			cmd := Doctor(func(*cobra.Command, string) []doctor.Finding { return tc.list })
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetArgs(append([]string{}, args...)) // for nil it would use os.Args
			err := cmd.Execute()
			return out.String(), err
		}
		text, err := run()
		testutil.True(t, (tc.text == "" || text == tc.text) && err == tc.err,
			"got %q, %v, want %q, %v", text, err, tc.text, tc.err)
		text, err = run("-o", "json")
		var list []doctor.Finding
		testutil.True(t, json.Unmarshal([]byte(text), &list) == nil &&
			slices.Equal(list, tc.list) && err == tc.err, "as JSON: %s, %v", text, err)
		text, err = run("-o", "xml")
		testutil.True(t, err != nil && err != tc.err && text == "", "as XML: %q, %v", text, err)
	}
}

func runKey(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	c := keyCommand()
	var out bytes.Buffer
	c.SetIn(strings.NewReader(in))
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.Execute()
	return out.String(), err
}

// TestKey: check accepts the output of gen, and no message repeats a key.
func TestKey(t *testing.T) {
	for args, want := range map[string]string{
		"gen":                      "valid: 32 bytes, no transformation\n",
		"gen --hmac 2":             "valid: 48 bytes, transformation sha384\n",
		"gen -m 1 --key-length 64": "valid: 64 bytes, transformation sha256\n",
		"gen --tls":                "valid for TLS: 32 bytes, hash sha256\n",
		"gen --tls --hmac 2":       "valid for TLS: 48 bytes, hash sha384\n",
		"gen --tls -m 0":           "valid for TLS: 32 bytes, no hash\n",
	} {
		key := testutil.Value(runKey(t, "", strings.Fields(args)...))(t)
		testutil.Equal(t, testutil.Value(runKey(t, key, "check"))(t), want, "%s", args)
		bad := key[:20] + "x" + key[21:]
		if bad == key {
			bad = key[:20] + "y" + key[21:]
		}
		out, err := runKey(t, bad, "check")
		testutil.True(t, err != nil && !strings.Contains(out+err.Error(), key[22:40]), "%s: %q, %v",
			args, out, err)
	}
	const secret = "ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n"
	for _, args := range []string{
		"gen -l 33", "gen -m 4", "gen --tls -m 3", "gen --tls -l 32", "psk-identity",
		"psk-identity -n h -c s NVMeTLSkey-1:01:" + secret + ":",
		"check NVMeTLSkey-1:01:" + secret + ":", "gen x", "check /nonexistent",
		"check DHHC-1:00:" + secret + ":",
	} {
		if _, err := runKey(t, "", strings.Fields(args)...); err == nil {
			t.Errorf("%s: no error", args)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error tells the key: %v", err)
		}
	}
}

// TestIdentity: for a key of libnvme (its test/psk.c), the output is that of nvme-cli, for both
// ways to derive PSKs.
func TestIdentity(t *testing.T) {
	const (
		key   = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n"
		names = "R01 nqn.psk-test-host nqn.psk-test-subsys"
		want  = "RFC 8446: NVMe1" + names + " iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=\n" +
			"RFC 8446: NVMe0" + names + "\n" +
			"compat: NVMe1" + names + " 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=\n" +
			"compat: NVMe0" + names + "\n"
	)
	nqns := []string{"-n", "nqn.psk-test-host", "-c", "nqn.psk-test-subsys"}
	got, err := runKey(t, key, append([]string{"psk-identity"}, nqns...)...)
	testutil.True(t, err == nil && got == want, "%q, %v", got, err)
	for _, bad := range []string{"", key[:30] + key[31:], strings.Replace(key, "01", "02", 1)} {
		if out, err := runKey(t, bad, append([]string{"psk-identity"}, nqns...)...); err == nil ||
			strings.Contains(out+err.Error(), key[20:30]) {
			t.Errorf("%q, %v", out, err)
		}
	}
}
