package logs

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// auditing makes a log with a file of records.
func auditing(t *testing.T, path string) (*Audit, *testutil.Log, *slog.Logger) {
	t.Helper()
	out, a := new(testutil.Log), new(Audit)
	log := slog.New(ratelog.NewRecorder(a.Handler(slog.NewTextHandler(out, nil))))
	testutil.Must(t, a.Open(path, log))
	return a, out, log
}

// TestAuditFlood: of 100,000 refusals in a second the file gets few, and fewer of one address. It
// has the number of the missing ones, and all other records.
func TestAuditFlood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	synctest.Test(t, func(t *testing.T) {
		a, _, log := auditing(t, path)
		peers := ratelog.New(log)
		const n = 100_000
		name := strings.Repeat("n", 223)
		for i := range n {
			from := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			if i%2 == 0 {
				from = netip.AddrFrom4([4]byte{10, 1, 1, 1})
			}
			peers.Peer(netip.AddrPortFrom(from, 1)).Report(event.ConnectRefused, "host", name)
		}
		event.ControlRequest.Report(log, "request", "POST /v1/reload")
		time.Sleep(time.Minute) // in the bubble
		a.Close()
		written, one, lost, others := 0, 0, 0.0, 0
		for _, r := range testutil.JSONLines(t, path) {
			switch {
			case r["outcome"] == "lost" && r["audit"] == "refusal":
				lost += r["lines"].(float64)
			case r["msg"] == "connect refused":
				if written++; r["remote"] == "10.1.1.1:1" {
					one++
				}
			case r["msg"] == "control request":
				others++
			}
		}
		testutil.True(t, written <= 100 && one == 10 && written+int(lost) == n && others == 1,
			"%d records, %d of one address, %v lost, %d others", written, one, lost, others)
		if info, err := os.Stat(path); err != nil || info.Size() > 100<<10 {
			t.Errorf("%d bytes, %v", info.Size(), err)
		}
	})
}

// TestAuditSlowDisk: while the disk takes nothing, nobody waits, few records are kept, and every
// record is written or counted.
func TestAuditSlowDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	a, out, log := auditing(t, path)
	file := a.file
	r, w, err := os.Pipe() // it blocks after 64 KiB
	testutil.Must(t, err)
	testutil.Value(w.Write(make([]byte, 64<<10)))(t)
	_ = file.f.Close()
	file.f = w
	const n = 5_000 // records of more than 1 KiB
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range n {
			event.ControlRequest.Report(log, "request", strings.Repeat("r", 1024))
		}
	}()
	testutil.Receive(t, "the log does not wait for the disk", done)
	r.Close()
	testutil.Until(t, "the log has a line for lost records", func() bool {
		event.ControlRequest.Report(log)
		return strings.Contains(out.String(), event.AuditLost.Message)
	})
	a.Close()
	written, lost := 0, 0
	for _, r := range testutil.JSONLines(t, path) {
		if r["msg"] == event.AuditLost.Message {
			lost += int(r["lines"].(float64))
		} else {
			written++
		}
	}
	testutil.True(t, written+lost >= n && lost >= n/2 && uint64(lost) == a.Lost(),
		"%d records written, %d lost, of more than %d; counted %d", written, lost, n, a.Lost())
	testutil.Equal(t, strings.Count(out.String(), "audit records cannot be written"), 1,
		"lines say that the disk fails")
}

// TestAuditFullDisk: a full disk is reported once and nothing waits. When there is space again,
// records are whole lines and have the number of missing ones.
func TestAuditFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs the right to mount: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	path, filler := filepath.Join(dir, "audit"), filepath.Join(dir, "filler")
	a, out, log := auditing(t, path)
	_ = os.WriteFile(filler, make([]byte, 48<<10), 0o600)
	const n = 300
	for range n { // 60 KB, so that one is cut off
		event.ControlRequest.Report(log, "request", strings.Repeat("r", 100))
		for len(a.file.sink.wake) > 0 {
			runtime.Gosched()
		}
	}
	await := func(text string) {
		t.Helper()
		testutil.Until(t, text, func() bool { return strings.Contains(out.String(), text) })
	}
	await("audit records cannot be written")
	testutil.Must(t, os.Remove(filler))
	event.ControlRequest.Report(log, "request", "after")
	await(event.AuditLost.Message)
	event.ControlRequest.Report(log, "request", "last")
	a.Close()
	got := strings.Count(out.String(), "audit records cannot be written")
	testutil.True(t, got == 1, "it is said %d times", got)
	b := testutil.Value(os.ReadFile(path))(t)
	torn, written, lost := 0, 0, 0
	for line := range bytes.Lines(b) {
		var r map[string]any
		switch {
		case json.Unmarshal(line, &r) != nil:
			torn++
		case r["msg"] == event.AuditLost.Message:
			lost += int(r["lines"].(float64))
		default:
			written++
		}
	}
	testutil.True(t, torn <= 1 && lost != 0 && written+lost >= n+1 && bytes.Contains(b,
		[]byte(`"last"`)) && uint64(lost) == a.Lost(),
		"%d records, %d torn, %d lost of %d, %d counted", written, torn, lost, n+2, a.Lost())
}

// TestAuditRotation: after a file was renamed, records go to it until a reload, and then to a new
// one. A record cut off by a crash does not damage the next one.
func TestAuditRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	testutil.Must(t, os.WriteFile(path, []byte(`{"msg":"cut o`), 0o600))
	a, _, log := auditing(t, path)
	say := func(what, where string) {
		t.Helper()
		event.ControlRequest.Report(log, "request", what)
		testutil.Until(t, what+" is in "+where, func() bool {
			b, _ := os.ReadFile(where)
			return strings.Contains(string(b), what)
		})
	}
	say("first", path)
	testutil.Must(t, os.Rename(path, path+".1"))
	say("second", path+".1")
	a.Reopen()
	say("third", path)
	a.Close()
	testutil.Equal(t, len(testutil.JSONLines(t, path)), 1, "records in the new file")
	b, err := os.ReadFile(path + ".1")
	if lines := strings.Split(string(b), "\n"); err != nil || len(lines) != 4 ||
		lines[0] != `{"msg":"cut o` || !strings.HasSuffix(lines[1], "}") {
		t.Errorf("%q, %v", lines, err)
	}
}
