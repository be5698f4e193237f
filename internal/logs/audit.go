package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/state"
)

// This file has the audit. Log lines about admissions, refusals and changes by clients get a mark,
// and go to a file as well. Package event defines them. See ADR 0035.

// auditor is the handler of a log that marks the records, and writes them to a file at any level.
type auditor struct {
	slog.Handler
	*Audit
}

// Audit marks records of a log and writes them to a file, if any. Any goroutine may use it.
type Audit struct {
	lost atomic.Uint64 // records that are not in the file

	mu   sync.RWMutex // never held while writing
	file *auditFile   // nil: no file
}

// Handler returns a handler that passes on lines, with their marks, to next.
func (a *Audit) Handler(next slog.Handler) slog.Handler { return &auditor{next, a} }

// Lost returns the number of records that are not in the file.
func (a *Audit) Lost() uint64 { return a.lost.Load() }

func (a *auditor) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || a.Handler.Enabled(ctx, level)
}

func (a *auditor) Handle(ctx context.Context, line slog.Record) error {
	if k := event.Of(ctx); k != nil && k.Audit != "" {
		line = line.Clone()
		line.AddAttrs(slog.String("audit", k.Audit), slog.String("outcome", k.Outcome))
		a.mu.RLock()
		if a.file != nil {
			_ = a.file.records.Handle(ctx, line) // only for another goroutine, see sink
		}
		a.mu.RUnlock()
	}
	if !a.Handler.Enabled(ctx, line.Level) {
		return nil
	}
	return a.Handler.Handle(ctx, line)
}

// WithAttrs implements slog.Handler. Records in the file do not have these attributes.
func (a *auditor) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &auditor{a.Handler.WithAttrs(attrs), a.Audit}
}

func (a *auditor) WithGroup(name string) slog.Handler {
	return &auditor{a.Handler.WithGroup(name), a.Audit}
}

// Reopen makes the next record open the file again, since it may have been renamed.
func (a *Audit) Reopen() {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.file != nil {
		a.file.renamed.Store(true)
	}
}

// use writes records to another file, nil for none, and closes the previous one.
func (a *Audit) use(file *auditFile) {
	a.mu.Lock()
	old := a.file
	a.file = file
	a.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// Open writes records to the file at path from now on, "" for none. A full disk is not an error.
// Failures to write are logged. One goroutine at a time calls Open and Close.
func (a *Audit) Open(path string, log *slog.Logger) error {
	if a.file != nil && a.file.path == path {
		return nil
	}
	if path == "" {
		a.Close()
		return nil
	}
	f, err := openAudit(path)
	if err != nil && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	file := &auditFile{path: path, log: log, total: &a.lost, f: f}
	file.sink = NewSink(file, file.lose)
	file.records = slog.NewJSONHandler(file.sink, nil)
	a.use(file)
	return nil
}

// Close writes the remaining records and closes the file.
func (a *Audit) Close() { a.use(nil) }

// auditFile is an open file of records. Nobody waits for it: records for which there is no room in
// the sink, or on the disk, are counted, and a record has their number.
type auditFile struct {
	path    string
	log     *slog.Logger
	total   *atomic.Uint64
	sink    *Sink
	records slog.Handler // writes to sink
	renamed atomic.Bool

	// The following belong to the goroutine of the sink.

	f    *os.File // nil after an error
	bad  bool     // the last records could not be written
	lost int      // records, since it is bad
}

// Write implements io.Writer: it appends records and makes them durable.
func (a *auditFile) Write(records []byte) (int, error) {
	err := a.append(records)
	switch {
	case err != nil:
		if a.f != nil {
			_ = a.f.Close() // the state of the records is unknown
			a.f = nil
		}
		if !a.bad {
			a.log.Error("audit records cannot be written", "path", a.path, "err", err)
		}
		a.bad = true
		a.lose(bytes.Count(records, []byte("\n")))
	case a.bad:
		lost := a.lost
		a.bad, a.lost = false, 0
		event.AuditLost.Report(a.log, "lines", lost, "path", a.path)
	}
	return len(records), nil
}

// lose counts records that are lost.
func (a *auditFile) lose(n int) {
	a.total.Add(uint64(n))
	if a.bad {
		a.lost += n
	} else {
		event.AuditLost.Report(a.log, "lines", n, "path", a.path)
	}
}

func (a *auditFile) append(records []byte) (err error) {
	if a.renamed.Swap(false) && a.f != nil {
		_ = a.f.Close() // its records are durable
		a.f = nil
	}
	if a.f == nil {
		if a.f, err = openAudit(a.path); err != nil {
			return err
		}
	}
	if len(records) == 0 {
		return nil
	}
	if _, err = a.f.Write(records); err != nil {
		return err
	}
	return a.f.Sync()
}

// close writes the remaining records. If the file does not take them in time, it stays open.
func (a *auditFile) close() {
	a.sink.Close(Patience)
	select {
	case <-a.sink.ended:
		if a.f != nil {
			_ = a.f.Close()
		}
	default:
	}
}

// openAudit opens a file of records, and creates it if it is missing. It terminates a record that
// was cut off by a full disk or a crash.
func openAudit(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK,
		0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err == nil && info.Size() > 0 {
		last := []byte{0}
		if _, err = f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			_, err = f.WriteString("\n")
		}
	}
	if err == nil {
		err = state.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
