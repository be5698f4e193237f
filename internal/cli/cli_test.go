package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC
	testutil.Main(m)
}

const (
	testSub  = "nqn.2026-11.io.nvmf-target:disk0"
	testHost = "nqn.2014-08.org.nvmexpress:uuid:1"
)

var at = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// said are the answers of the target of these tests: testdata/source.json.
type said struct {
	Status      observed.Status       `json:"status"`
	Listeners   []observed.Listener   `json:"listeners"`
	Subsystems  []observed.Subsystem  `json:"subsystems"`
	Namespaces  []observed.Namespace  `json:"namespaces"`
	Hosts       []observed.Host       `json:"hosts"`
	Connections []observed.Connection `json:"connections"`
	Latency     []observed.Latency    `json:"latency"`
	Reactors    []observed.Reactor    `json:"reactors"`
	Refusals    []observed.Refusal    `json:"refusals"`
	Events      []observed.Event      `json:"events"`
	Plan        control.Plan          `json:"plan"`
	ANA         []control.ANA         `json:"ana"`
	Groups      []observed.Group      `json:"groups"`
}

func source() control.Source {
	text, err := os.ReadFile("testdata/source.json")
	if err != nil {
		panic(err)
	}
	var s said
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		panic(err)
	}
	return control.Source{
		Source: observed.Source{
			Status:     func() observed.Status { return s.Status },
			Listeners:  func() []observed.Listener { return s.Listeners },
			Subsystems: func() []observed.Subsystem { return s.Subsystems },
			Namespaces: func() []observed.Namespace { return s.Namespaces },
			Hosts:      func() []observed.Host { return s.Hosts },
			Refusals:   func() []observed.Refusal { return s.Refusals },
			Groups:     func() []observed.Group { return s.Groups },
			Connections: func(context.Context) ([]observed.Connection, error) {
				return s.Connections, nil
			},
			Latency:  func(context.Context) ([]observed.Latency, error) { return s.Latency, nil },
			Reactors: func(context.Context) ([]observed.Reactor, error) { return s.Reactors, nil },
			Events: func(since uint64) ([]observed.Event, <-chan struct{}) {
				return s.Events[since:], make(chan struct{})
			},
		},
		ANA:  func() []control.ANA { return s.ANA },
		Plan: func(context.Context) (control.Plan, error) { return s.Plan, nil },
		Reload: func(context.Context) (control.Plan, error) {
			return control.Plan{
				Changes: []control.Change{{Text: "add listener tcp 10.0.0.2:4420"}},
			}, nil
		},
		SetANA: func(a control.ANASet) ([]control.ANA, error) {
			if a.State == "" {
				return nil, errors.New("no state")
			}
			return []control.ANA{{
				Group: a.Group, Listener: a.Listener, State: a.State, Configured: "optimized",
			}}, nil
		},
		GroupVersions: func(context.Context) ([]control.GroupVersion, error) {
			at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.Local)
			return []control.GroupVersion{
				{
					Version: 2, Applied: true, Time: at, Gateway: "a", Of: 1,
					Configuration: `{"subsystems":[{"nqn":"nqn.2026-11.x:\/a"}]}`,
				},
				{Version: 1, Time: at, Gateway: "b", Configuration: `{"subsystems":[]}`},
			}, nil
		},
		ChangeGroup: func(_ context.Context, c control.GroupChange) (control.Plan, error) {
			text := fmt.Sprintf("%s, base %d, rollback %d", c.Configuration, c.Base, c.Rollback)
			return control.Plan{Changes: []control.Change{{Text: text}}}, nil
		},
		DrainGroup: func(d control.GroupDrain) error {
			if d != (control.GroupDrain{Group: 2}) && (d.Gateway != "a" || !d.Undo) {
				return fmt.Errorf("drain %+v", d)
			}
			return nil
		},
		Fence: func(gateway string) error {
			if gateway != "b" {
				return fmt.Errorf("fence %s", gateway)
			}
			return nil
		},
		Forget: func(gateway string) error {
			if gateway != "c" {
				return fmt.Errorf("forget %s", gateway)
			}
			return nil
		},
		Pause: func(control.NamespaceID, bool) error { return nil },
		Resize: func(r control.Resize) error {
			if r != (control.Resize{Subsystem: testSub, NSID: 1, Size: "20GiB", Shrink: true}) {
				return fmt.Errorf("resize to %+v", r)
			}
			return nil
		},
		Drain: func(which control.ListenerID, drain bool) ([]observed.Listener, error) {
			l := observed.Listener{
				Transport: "tcp", Address: which.Listener, PortID: 1, State: "up",
			}
			if drain {
				l.State, l.Connections = "draining", 7
			}
			return []observed.Listener{l}, nil
		},
		Disconnect: func(host, subsystem string) int {
			if host != testHost || subsystem != "" {
				return 0
			}
			return 2
		},
	}
}

// serve starts a server and returns its socket.
func serve(t *testing.T, src control.Source) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "c.sock")
	s := testutil.Value(
		control.Listen(control.Config{Socket: socket}, src, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { _ = s.Close() })
	return socket
}

// run executes a command line and returns its output.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{Use: "nvmf-target", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// TestText: the text output of each command.
func TestText(t *testing.T) {
	socket := serve(t, source())
	var b strings.Builder
	for _, line := range []string{
		"status", "listeners", "subsystems", "namespaces", "hosts", "connections", "latency",
		"refusals",
		"events", "plan", "reload", "disconnect " + testHost, "disconnect " + testHost + " x",
		"undrain 10.0.0.2:4420", "group status", "group forget c",
		"group fence b", "group drain a --undo", "group history",
		"group history 2", "group rollback 1", "apply testdata/shared.yaml --group --base 2", "ana",
		"ana set 2 inaccessible --listener 10.0.0.2:4420",
		"namespace pause nqn.2026-11.io.nvmf-target:disk0 1",
		"namespace resize nqn.2026-11.io.nvmf-target:disk0 1 20GiB --shrink",
	} {
		out, err := run(t, append(strings.Fields(line), "--socket", socket)...)
		if line == "plan" && errors.Is(err, ErrChanges) {
			err = nil
		}
		testutil.True(t, err == nil, "%s: %v", line, err)
		b.WriteString("# " + line + "\n" + out + "\n")
	}
	testutil.Golden(t, "testdata/text.golden", b.String())
}

// same checks that a command prints the answer of the source as JSON.
func same[T any](t *testing.T, socket, name string, want T) {
	t.Helper()
	out, err := run(t, name, "-o", "json", "--socket", socket)
	testutil.MustTrue(t, err == nil || errors.Is(err, ErrChanges), "%s: %v", name, err)
	text, err := json.MarshalIndent(want, "", "  ")
	testutil.True(t, err == nil && out == string(text)+"\n", "%s: got %s, want %s", name, out, text)
}

// TestJSON: the JSON output has everything from the interface.
func TestJSON(t *testing.T) {
	src := source()
	socket := serve(t, src)
	same(t, socket, "status", src.Status())
	same(t, socket, "listeners", src.Listeners())
	same(t, socket, "namespaces", src.Namespaces())
	same(t, socket, "hosts", src.Hosts())
	same(t, socket, "refusals", src.Refusals())
	plan, _ := src.Plan(t.Context())
	same(t, socket, "plan", plan)
	out, err := run(t, "events", "-o", "json", "--socket", socket)
	first, _, _ := strings.Cut(out, "\n")
	testutil.True(t, err == nil && strings.Count(out, "\n") == 2 && json.Valid([]byte(first)),
		"%s, %v", out, err)
}

// TestPlanExitCode: no changes, changes, and errors have different exit codes.
func TestPlanExitCode(t *testing.T) {
	src := source()
	testutil.Is(t, testutil.Err(run(t, "plan", "--socket", serve(t, src))), ErrChanges, "changes")
	src.Plan = func(context.Context) (control.Plan, error) { return control.Plan{}, nil }
	out, err := run(t, "plan", "--socket", serve(t, src))
	testutil.True(t, err == nil && out == "nothing to do\n", "%q, %v", out, err)
	src.Plan = func(context.Context) (control.Plan, error) {
		return control.Plan{}, control.NewProblem(422, "broken file", "Fix it.")
	}
	_, err = run(t, "plan", "--socket", serve(t, src))
	testutil.True(t, err != nil && !errors.Is(err, ErrChanges) &&
		err.Error() == "broken file. Fix it.", "an error: %v", err)
}

// stopWriter ends a command at its second line.
type stopWriter struct {
	bytes.Buffer
	stop func()
}

func (w *stopWriter) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if bytes.Count(w.Bytes(), []byte("\n")) == 2 {
		w.stop()
	}
	return n, err
}

// TestFollow: lines are printed as they arrive, until the user or the target ends it.
func TestFollow(t *testing.T) {
	socket := serve(t, source())
	ctx, cancel := context.WithCancel(t.Context())
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	out := &stopWriter{stop: cancel}
	root.SetOut(out)
	root.SetArgs([]string{"events", "-f", "--socket", socket})
	testutil.Is(t, root.ExecuteContext(ctx), context.Canceled, "")
	if want := "2026-11-01 12:00:00 WARN  refused qid=1\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %s", out.String())
	}
}

// TestTargetStops: a follower is told that the target has stopped.
func TestTargetStops(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "c.sock")
	s := testutil.Value(control.Listen(control.Config{Socket: socket}, source(),
		slog.New(slog.DiscardHandler)))(t)
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	root.SetOut(&stopWriter{stop: func() { go func() { _ = s.Close() }() }})
	root.SetArgs([]string{"events", "-f", "--socket", socket})
	err := root.ExecuteContext(t.Context())
	testutil.True(t, err != nil && err.Error() == "the target has stopped", "%v", err)
}

// TestFullOutput: the first error of the output ends a list.
func TestFullOutput(t *testing.T) {
	full := testutil.Value(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	root.SetOut(full)
	root.SetArgs([]string{"events", "--socket", serve(t, source())})
	err := root.ExecuteContext(t.Context())
	testutil.MustTrue(t, errors.Is(err, syscall.ENOSPC), "%v", err)
	testutil.Equal(t, strings.Count(err.Error(), "no space"), 1, "errors in %q", err)
}

func TestUsage(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for line, want := range map[string]string{
		"status --socket " + none: "--socket", "status -o xml": "text or json",
		"status more": "unknown command", "disconnect": "between 1 and 2", "drain": "--all",
		"namespace resize s x 1GiB": "NSID is a number",
		"undrain a --all":           "--all",
	} {
		_, err := run(t, strings.Fields(line)...)
		testutil.True(t, err != nil && strings.Contains(err.Error(), want), "%s: %v", line, err)
	}
}

// TestDrain: it waits until no connection is left and prints their number, but not forever.
func TestDrain(t *testing.T) {
	defer func(every time.Duration) { drainEvery = every }(drainEvery)
	drainEvery = time.Millisecond
	src, asked := source(), 0
	src.Listeners = func() []observed.Listener {
		asked++
		l := observed.Listener{PortID: 1, State: "draining", Connections: 8 - asked}
		if asked == 3 {
			l = observed.Listener{PortID: 1, State: "drained"}
		}
		return []observed.Listener{l, {PortID: 2, State: "draining", Connections: 9}}
	}
	socket := serve(t, src)
	out, err := run(t, "drain", "10.0.0.2:4420", "--socket", socket)
	want := "7 connections left\n6 connections left\nPORT ID"
	testutil.True(t, err == nil && asked == 3 && strings.HasPrefix(out, want) &&
		strings.Contains(out, "drained"), "%s, %v, asked %d times", out, err, asked)
	drainEvery = time.Hour
	_, err = run(t, "drain", "--all", "--timeout", "1ms", "--socket", socket)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "7 connections left"), "%v", err)
	_, err = run(t, "group", "drain", "2", "--timeout", "1ms", "--socket", socket)
	testutil.Fails(t, err, "no other gateway has taken group 2", "")
	drainEvery, asked = time.Millisecond, 0
	src.Groups = func() []observed.Group {
		asked++
		g := observed.Group{ANAGroup: 2, State: "stopping", Drained: true}
		if asked > 2 {
			g.State, g.Holder = "standby", "b"
		}
		return []observed.Group{{ANAGroup: 1, State: "serving", Holder: "a"}, g}
	}
	testutil.Must(t, testutil.Err(run(t, "group", "drain", "2", "--socket", serve(t, src))))
	testutil.Equal(t, asked, 3, "looks at a group that is drained")
}

// TestMan: there is a page for each command.
func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man")
	testutil.Value(run(t, "man", dir))(t)
	for _, c := range Commands() {
		page, err := os.ReadFile(filepath.Join(dir, "nvmf-target-"+c.Name()+".1"))
		testutil.True(t, err == nil && strings.Contains(string(page), strings.Fields(c.Short)[0]),
			"%s: %v", c.Name(), err)
	}
}

// TestNarrowTerminal: a table wider than the terminal is printed as one line for each cell.
func TestNarrowTerminal(t *testing.T) {
	for width, want := range map[int]string{
		0:  "A LIST\nNAME  STATE  REASON\na     up     -\nb     down   it is not there\n",
		28: "A LIST\nNAME  STATE  REASON\na     up     -\nb     down   it is not there\n",
		27: "A LIST\nNAME    a\nSTATE   up\nREASON  -\n\n" +
			"NAME    b\nSTATE   down\nREASON  it is not there\n\n",
	} {
		var out strings.Builder
		tab := newTable(&out)
		tab.width = width
		tab.line("A LIST")
		tab.row("NAME", "STATE", "REASON")
		tab.row("a", "up", "-")
		tab.row("b", "down", "it is not there")
		if err := tab.flush(); err != nil || out.String() != want {
			t.Errorf("%d columns: %v, got:\n%swant:\n%s", width, err, out.String(), want)
		}
	}
}

// TestWideTitle: a row of one cell wider than the terminal does not change the others.
func TestWideTitle(t *testing.T) {
	var out strings.Builder
	tab := newTable(&out)
	tab.width = 20
	title := strings.Repeat("title ", 20)
	tab.line(title)
	tab.row("STAGE", "SHARE", "MEAN")
	tab.row("wait", "0%", "0s")
	want := title + "\nSTAGE  SHARE  MEAN\nwait   0%     0s\n"
	err := tab.flush()
	testutil.True(t, err == nil && out.String() == want, "%v, got:\n%s", err, out.String())
}

// TestOptionalColumns: optional columns are left out one by one, then lines are cut off.
func TestOptionalColumns(t *testing.T) {
	for width, want := range map[int]string{
		0:  "title of a queue\nTIME  CID  NSID  STATUS\n12    7    1     Success\n",
		24: "title of a queue\nTIME  CID  NSID  STATUS\n12    7    1     Success\n",
		23: "title of a queue\nTIME CID NSID STATUS\n12   7   1    Success\n",
		19: "title of a queue\nTIME NSID STATUS\n12   1    Success\n",
		16: "title of a queue\nTIME STATUS\n12   Success\n",
		11: "title of a queue\nTIME STATUS\n12   Succe…\n",
		1:  "title of a queue\n…\n…\n",
	} {
		var out strings.Builder
		tab := newTable(&out)
		tab.width, tab.optional = width, []string{"CID", "NSID"}
		tab.line("title of a queue")
		tab.row("TIME", "CID", "NSID", "STATUS")
		tab.row(12, 7, 1, "Success")
		if err := tab.flush(); err != nil || out.String() != want {
			t.Errorf("%d columns: %v, got:\n%swant:\n%s", width, err, out.String(), want)
		}
	}
}

// TestTraceText: on a terminal of 80 columns a command takes one line. A selection without matches
// has a message.
func TestTraceText(t *testing.T) {
	queue := observed.TraceQueue{Host: testHost, Subsystem: testSub, CNTLID: 7, QID: 1}
	for i := range 3 {
		queue.Commands = append(queue.Commands, observed.TraceCommand{
			State: "done", Start: at, Command: "Write", CID: uint16(60000 + i), NSID: 17,
			LBA: 1 << 34, Blocks: 256, Length: 131072, Status: "Success", WaitSeconds: 12.3e-6,
			HostDataSeconds: 123e-6, BackendSeconds: 1.23e-3, ResponseSeconds: 45.6e-6,
		})
	}
	var out strings.Builder
	o := traceOptions{}
	tab := o.table(&out, &queue)
	tab.width = 80
	testutil.Must(t, tab.flush())
	lines := strings.Split(out.String(), "\n")
	testutil.True(t, len(lines) == 7 && strings.Contains(lines[2], "17179869184") &&
		strings.HasSuffix(lines[2], "Success") && len(lines[2]) <= 80, "%d lines:\n%s", len(lines),
		out.String())
	src := source()
	src.Trace = func(context.Context, observed.TraceQuery,
		func(observed.TraceQueue) error,
	) error {
		return nil
	}
	socket := serve(t, src)
	for line, want := range map[string]string{
		"trace":             "no host is connected\n",
		"trace --queue 9":   "no such queue, or no host is connected\n",
		"trace --dumps":     "nothing was kept: ",
		"trace -o json":     "",
		"trace --host none": "no such queue, or no host is connected\n",
	} {
		out, err := run(t, append(strings.Fields(line), "--socket", socket)...)
		testutil.True(t, err == nil && strings.HasPrefix(out, want) && (want != "" || out == ""),
			"%s: %q, %v", line, out, err)
	}
}
