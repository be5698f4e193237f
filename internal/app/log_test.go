package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// gate is a writer that waits until it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	b    bytes.Buffer
}

func (g *gate) Write(b []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(b)
}

// TestSink: writing never waits, lines that fit are written in order, and dropped lines are counted
// when there is room again.
func TestSink(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	dropped := 0
	s := newSink(g, func(n int) { dropped += n })
	line := []byte(strings.Repeat("x", 1023) + "\n")
	const lines = 4 * sinkSize / 1024
	for range lines {
		n, err := s.Write(line)
		testutil.MustTrue(t, n == len(line) && err == nil, "%v %v", n, err)
	}
	close(g.open)
	s.close(testTimeout)
	written := bytes.Count(g.b.Bytes(), line)
	if written < sinkSize/1024 || written > 2*sinkSize/1024 || g.b.Len() != written*len(line) {
		t.Errorf("%d lines are written, in %d bytes", written, g.b.Len())
	}
	testutil.True(t, written+dropped == lines, "%d lines of %d are written, %d counted as dropped",
		written, lines, dropped)
	testutil.Equal(t, testutil.Err(s.Write(line)), nil, "after close")
}

// TestSinkCloseHasADeadline: a writer that never continues does not keep the program from ending.
func TestSinkCloseHasADeadline(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	s := newSink(g, func(int) {})
	testutil.Value(s.Write([]byte("line\n")))(t)
	s.close(time.Millisecond)
	close(g.open)
	<-s.ended
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
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	testutil.Must(t, unix.SetNonblock(fd, false))
	return r, w
}

// TestJournal: each line begins with its priority if standard error is the journal.
func TestJournal(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newJournal(false, slog.LevelDebug, &out)).With("a", 1).WithGroup("g")
	log.Debug("d")
	log.Info("i")
	log.Warn("w")
	log.Error("e", "b", 2)
	var got []string
	for line := range strings.Lines(out.String()) {
		prefix, rest, _ := strings.Cut(line, "time=")
		got = append(got, prefix+strings.TrimSpace(rest[strings.Index(rest, " level="):]))
	}
	want := []string{
		"<7>level=DEBUG msg=d a=1", "<6>level=INFO msg=i a=1", "<4>level=WARN msg=w a=1",
		"<3>level=ERROR msg=e a=1 g.b=2",
	}
	testutil.EqualSlices(t, got, want, "")

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

// TestJSON: values agree with the text form, and the announcement is JSON, too.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newHandler(true, slog.LevelInfo, &out))
	log.Info("a", "transport", nvme.TransportTCP, "signal", syscall.SIGTERM, "depth", 128,
		"spin", 200*time.Microsecond, "err", io.EOF, "size", lang.Size(1<<20),
		"device", (*url.URL)(nil), "cpus", []int(nil))
	_, _ = io.WriteString(lines{log}, "one\n  two\n")
	var got []map[string]any
	for d := json.NewDecoder(&out); ; {
		var line map[string]any
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		testutil.Check(t, testutil.Err(time.Parse(time.RFC3339Nano, line["time"].(string))))
		delete(line, "time")
		got = append(got, line)
	}
	want := []map[string]any{
		{
			"level": "INFO", "msg": "a", "transport": "tcp", "signal": "terminated",
			"depth": 128.0, "spin": "200µs", "err": "EOF", "size": "1MiB", "device": "<nil>",
			"cpus": []any{},
		},
		{"level": "INFO", "msg": "one"},
		{"level": "INFO", "msg": "two"},
	}
	testutil.True(t, reflect.DeepEqual(got, want), "%v", got)
}
