// Package logs writes the log and the audit. No logger waits for a reader of lines, or for a disk.
package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
)

// Patience bounds the time that the end of the program waits for the reader of its output.
var Patience = 2 * time.Second // tests change it

// Open makes a log that never waits for w. end writes the remaining lines.
func Open(json bool, level slog.Leveler, w io.Writer) (log *slog.Logger, end func()) {
	newHandler := newHandler
	if journal, _ := journal.StderrIsJournalStream(); journal && w == io.Writer(os.Stderr) {
		newHandler = newJournal
	}
	direct := slog.New(newHandler(json, level, w))
	s := NewSink(w, func(lines int) {
		direct.Warn("log lines were dropped, since they were not read in time", "lines", lines)
	})
	return slog.New(newHandler(json, level, s)), func() { s.Close(Patience) }
}

func newHandler(json bool, level slog.Leveler, w io.Writer) slog.Handler {
	opts := &slog.HandlerOptions{Level: level}
	if json {
		opts.ReplaceAttr = inWords
		return slog.NewJSONHandler(w, opts)
	}
	return slog.NewTextHandler(w, opts)
}

// inWords makes JSON values agree with the text form: "tcp" instead of 3, [] instead of null.
func inWords(_ []string, a slog.Attr) slog.Attr {
	if v, ok := a.Value.Any().(fmt.Stringer); ok && a.Value.Kind() != slog.KindTime {
		a.Value = slog.StringValue(fmt.Sprint(v))
	}
	if v := reflect.ValueOf(a.Value.Any()); v.Kind() == reflect.Slice && v.IsNil() {
		a.Value = slog.AnyValue([]any{})
	}
	return a
}

// priorities passes lines of each level to its own handler, from slog.LevelDebug.
type priorities [4]slog.Handler

// newJournal makes a handler of lines that begin with their priority (sd-daemon(3)).
func newJournal(json bool, level slog.Leveler, w io.Writer) slog.Handler {
	var p priorities
	for i, prefix := range []string{"<7>", "<6>", "<4>", "<3>"} {
		p[i] = newHandler(json, level, prefixed{w, prefix})
	}
	return p
}

func (p priorities) Enabled(ctx context.Context, l slog.Level) bool { return p[0].Enabled(ctx, l) }

func (p priorities) Handle(ctx context.Context, r slog.Record) error {
	return p[min(max(r.Level-slog.LevelDebug, 0)/4, 3)].Handle(ctx, r)
}

func (p priorities) WithAttrs(attrs []slog.Attr) slog.Handler {
	for i, h := range p {
		p[i] = h.WithAttrs(attrs)
	}
	return p
}

func (p priorities) WithGroup(name string) slog.Handler {
	for i, h := range p {
		p[i] = h.WithGroup(name)
	}
	return p
}

type prefixed struct {
	io.Writer
	prefix string
}

func (p prefixed) Write(line []byte) (int, error) {
	_, err := p.Writer.Write(append([]byte(p.prefix), line...))
	return len(line), err
}

// Lines logs text, for readers that only take JSON.
type Lines struct{ *slog.Logger }

func (l Lines) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		l.Info(strings.TrimSpace(line))
	}
	return len(text), nil
}

// sinkSize is the number of bytes that a sink holds before it drops lines.
const sinkSize = 1 << 20

// Sink is a Writer that never waits for the Writer after it, so that a full pipe does not stall a
// reactor that logs. A goroutine writes the collected lines. Lines without room are dropped and
// counted. Any goroutine may write, one line at a time.
type Sink struct {
	out     io.Writer
	dropped func(lines int)

	mu      sync.Mutex
	pending []byte
	lost    int
	closed  bool

	wake  chan struct{} // holds one token
	ended chan struct{}
}

// NewSink returns a Sink before out. dropped is called on the goroutine that writes when lines were
// dropped and there is room again. The caller calls Close.
func NewSink(out io.Writer, dropped func(lines int)) *Sink {
	s := &Sink{
		out: out, dropped: dropped, wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	go s.run()
	return s
}

func (s *Sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	if s.closed || len(s.pending)+len(line) > sinkSize {
		s.lost++
	} else {
		s.pending = append(s.pending, line...)
	}
	s.mu.Unlock()
	s.signal()
	return len(line), nil
}

func (s *Sink) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Sink) run() {
	defer close(s.ended)
	var batch []byte
	for {
		s.mu.Lock()
		batch, s.pending = s.pending, batch[:0]
		lost, closed := s.lost, s.closed
		s.lost = 0
		s.mu.Unlock()
		switch {
		case len(batch) > 0 || lost > 0:
			_, _ = s.out.Write(batch) // an error of the log cannot be logged
			if lost > 0 {
				s.dropped(lost)
			}
		case closed:
			return
		default:
			<-s.wake
		}
	}
}

// Close writes pending lines, and waits for patience at most. Lines written later are lost.
func (s *Sink) Close(patience time.Duration) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.signal()
	select {
	case <-s.ended:
	case <-time.After(patience):
	}
}
