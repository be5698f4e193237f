package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestAudit: each audited event is one record, in the file and in the log, with the client, its
// address, the event, and the outcome. No record has a key.
func TestAudit(t *testing.T) {
	key, err := auth.NewKey(32, auth.SHA256)
	wrong, err2 := auth.NewKey(32, auth.SHA256)
	testutil.Must(t, errors.Join(err, err2))
	testutil.Secret(t, key.Reveal())
	testutil.Secret(t, wrong.Reveal())
	const nqn = "nqn.2026-11.io.nvmf-target:host"
	dir := t.TempDir()
	path, socket := filepath.Join(dir, "audit"), filepath.Join(dir, "sock")
	file := writeConfig(t, "")
	write := func(hosts string) {
		text := strings.Replace(validFile, "allow_any_host: true", "hosts: ["+nqn+"]", 1) + hosts +
			"\nlog: {level: warn}\nmanaged: " + filepath.Join(dir, "managed") +
			"\naudit: {path: " + path + "}\ncontrol: {socket: " + socket + "}\n"
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	with := "hosts: [{nqn: " + nqn + `, dhchap_key: "` + key.Reveal() + `"}]`
	write(with)
	c := testutil.Value(loader(file)())(t)
	log := new(testutil.Log)
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	s := started(t, Options{
		Config: c, Level: level, Load: loader(file),
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})),
	})
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	ctx := testutil.Context(t)
	client := control.NewClient(socket)
	defer client.Close()
	transport := host.TCP{Addr: s.Addrs()[0].AddrPort}
	connect := func(subsystem string, k *auth.Key) error {
		o := hostOptions(subsystem)
		o.HostNQN, o.Key = nqn, k
		h, err := host.Connect(ctx, transport, o)
		if err == nil {
			h.Close()
		}
		return err
	}
	testutil.Must(t, connect(testNQN, key))
	testutil.MustTrue(t, connect(testNQN, wrong) != nil && connect(testNQN+"-absent", key) != nil,
		"a host was not refused")
	_, err = control.PostDisconnect.To(ctx, client, control.Disconnect{Host: "absent"})
	_, err2 = client.Put(ctx, control.Object{Subsystem: testNQN + "-new"}, nil)
	testutil.Check(t, errors.Join(err, err2))
	_, err = control.PostDrain.To(ctx, client, control.ListenerID{Listener: "absent"})
	testutil.True(t, err != nil, "a listener that does not exist")
	write("")
	testutil.Check(t, testutil.Err(client.Reload(ctx)))
	write(with)
	testutil.Check(t, testutil.Err(s.Reload("signal", "hangup")))
	write("hosts: {}")
	testutil.True(t, testutil.Err(s.Reload("signal", "hangup")) != nil, "a broken file")
	testutil.Check(t, s.Stop(ctx))

	all := testutil.JSONLines(t, path)
	text := fmt.Sprint(all)
	for _, k := range []*auth.Key{key, wrong} {
		testutil.True(t, !shows(t, text, k), "a record has a key: %s", text)
	}
	me := fmt.Sprintf(" uid:%d", os.Getuid())
	pid := fmt.Sprintf(" pid:%d ", os.Getpid())
	for _, want := range [][]string{
		{"audit:authentication", "outcome:success", "host:" + nqn, " remote:127.0.0.1:", testNQN},
		{"audit:authentication", "outcome:failure", "host:" + nqn, " remote:127.0.0.1:", testNQN},
		{"audit:refusal", "outcome:failure", "host:" + nqn, testNQN + "-absent"},
		{"audit:administration", "outcome:success", "request:POST /v1/hosts/disconnect", me, pid},
		{"audit:administration", "outcome:success", "request:PUT /v1/subsystems/", me, pid},
		{"audit:administration", "configuration: + subsystem " + testNQN + "-new", me, pid},
		{"audit:administration", "outcome:failure", "request:POST /v1/listeners/drain", me, pid},
		{"audit:key", "outcome:success", "key changed: - host " + nqn, me, pid},
		{"audit:key", "key changed: + host " + nqn + ": dhchap_key: hidden-", "signal:hangup"},
		{"audit:administration", "request:POST /v1/reload", me, pid},
		{"audit:administration", "the configuration was applied", "signal:hangup", "changes:1"},
		{
			"audit:administration", "outcome:failure", "the configuration was not changed",
			"signal:hangup",
		},
	} {
		n := 0
		for _, r := range all {
			one := fmt.Sprint(r)
			fits := true
			for _, part := range want {
				fits = fits && strings.Contains(one, part)
			}
			if fits {
				n++
			}
		}
		testutil.True(t, n == 1, "%d records have %q:\n%s", n, want, text)
	}
	testutil.True(t, strings.Contains(log.String(), "audit=authentication outcome=failure") &&
		!strings.Contains(log.String(), "outcome=success"), "the log at the level of warnings:\n%s",
		log)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
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

// TestTraceOfTarget: a client sees the commands of a host, and follows them. The log names the
// client.
func TestTraceOfTarget(t *testing.T) {
	s, client := controlled(t, Options{}, anyPort)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	h, q := oneQueue(ctx, t, host.TCP{Addr: s.Addrs()[0].AddrPort})
	data := testutil.Value(h.Map(4096))(t)
	followed := make(chan observed.TraceCommand, 100)
	following, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- client.Trace(following, observed.TraceQuery{Queue: 1, Follow: true},
			func(q observed.TraceQueue) error {
				for _, c := range q.Commands {
					followed <- c
				}
				return nil
			})
	}()
	testutil.Must(t, errors.Join(hosttest.Write(ctx, q, 1, 64, 8, data, 0),
		hosttest.Read(ctx, q, 1, 64, 8, data)))
	testutil.MustTrue(t, hosttest.Read(ctx, q, 1, 1<<40, 8, data) != nil, "a read beyond the end")
	for _, want := range []string{"Connect", "Write", "Read", "Read"} {
		c := <-followed
		if c.Command != want || c.State != "done" || c.BackendSeconds+c.ResponseSeconds+
			c.HostDataSeconds+c.WaitSeconds <= 0 || want == "Write" && (c.LBA != 64 ||
			c.Blocks != 8 || c.Length != 4096 || c.Status != "success") {
			t.Errorf("%+v, want %s", c, want)
		}
	}
	stop()
	testutil.Is(t, <-ended, context.Canceled, "")
	var all []observed.TraceQueue
	keep := func(q observed.TraceQueue) error {
		all = append(all, q)
		return nil
	}
	if err := client.Trace(ctx, observed.TraceQuery{Queue: -1}, keep); err != nil || len(all) != 2 {
		t.Fatalf("%d queues, %v", len(all), err)
	}
	last := all[0].Commands
	if all[0].QID == 0 {
		last = all[1].Commands
	}
	c := last[len(last)-1]
	testutil.True(t, c.Status == "LBA Out of Range (0/80h) DNR" && c.LBA == 1<<40, "%+v", c)
	events, err := control.GetEvents.From(ctx, client)
	testutil.True(t, err == nil && strings.Contains(events[len(events)-1].Message,
		"control request"), "%+v, %v", events, err)
}
