package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func TestMain(m *testing.M) { testutil.Main(m) }

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
	s := NewSink(g, func(n int) { dropped += n })
	line := []byte(strings.Repeat("x", 1023) + "\n")
	const lines = 4 * sinkSize / 1024
	for range lines {
		n, err := s.Write(line)
		testutil.MustTrue(t, n == len(line) && err == nil, "%v %v", n, err)
	}
	close(g.open)
	s.Close(testutil.Patience)
	written := bytes.Count(g.b.Bytes(), line)
	testutil.True(t, written >= sinkSize/1024 && written <= 2*sinkSize/1024 &&
		g.b.Len() == written*len(line), "%d lines are written, in %d bytes", written, g.b.Len())
	testutil.True(t, written+dropped == lines, "%d lines of %d are written, %d counted as dropped",
		written, lines, dropped)
	testutil.Equal(t, testutil.Err(s.Write(line)), nil, "after close")
}

// TestSinkCloseHasADeadline: a writer that never continues does not keep the program from ending.
func TestSinkCloseHasADeadline(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	s := NewSink(g, func(int) {})
	testutil.Value(s.Write([]byte("line\n")))(t)
	s.Close(time.Millisecond)
	close(g.open)
	<-s.ended
}

// TestPriorities: each line begins with its priority.
func TestPriorities(t *testing.T) {
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
}

// TestJSON: values agree with the text form, and the announcement is JSON, too.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newHandler(true, slog.LevelInfo, &out))
	log.Info("a", "transport", nvme.TransportTCP, "signal", syscall.SIGTERM, "depth", 128,
		"spin", 200*time.Microsecond, "err", io.EOF, "size", lang.Size(1<<20),
		"device", (*url.URL)(nil), "cpus", []int(nil))
	_, _ = io.WriteString(Lines{log}, "one\n  two\n")
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
