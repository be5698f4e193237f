package ratelog

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func recorded(t *testing.T, level slog.Level) (*Recorder, *slog.Logger, *testutil.Log) {
	t.Helper()
	out := new(testutil.Log)
	r := NewRecorder(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	return r, slog.New(r), out
}

// TestRefusals: an equal refusal is counted and another one is remembered separately, even if the
// log does not have the lines.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log, out := recorded(t, slog.LevelError)
		l := New(log)
		begin := time.Now()
		for i := range 1000 {
			l.Peer(netip.AddrPortFrom(addr(1).Addr(), uint16(i))).Report(refused, "qid", 0, "err",
				errors.New("no such host"))
			time.Sleep(time.Second)
		}
		l.Peer(addr(1)).Report(refused, "qid", 1, "err", errors.New("no such host"))
		l.Peer(addr(1)).Report(created)
		list := r.Refusals()
		testutil.MustTrue(t, len(list) == 2 && list[0].Count == 1 && list[1].Count == 1000,
			"got %+v", list)
		kinds := r.Kinds()
		testutil.True(t, len(kinds) == 1 && kinds[refused] == 1001, "kinds %v", kinds)
		got := list[1]
		testutil.True(t, got.First.Equal(begin) && got.Last.Equal(begin.Add(999*time.Second)) &&
			strings.HasSuffix(got.Remote, ":999") && got.Message == "refused", "got %+v", got)
		want := []observed.Attribute{{Key: "qid", Value: "0"}, {Key: "err", Value: "no such host"}}
		testutil.EqualSlices(t, got.Attributes, want, "")
		testutil.Equal(t, out.String(), "", "lines below the level are in the log: %s", out)
	})
}

// TestRefusalsAreBounded: an address replaces its own refusals, and the total is bounded.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log, _ := recorded(t, slog.LevelError)
		l := New(log)
		l.Peer(addr(1)).Report(refused, "err", "first")
		for i := range 10_000 {
			time.Sleep(time.Millisecond)
			l.Peer(addr(2)).Report(refused, "host", fmt.Sprint(i), "err",
				strings.Repeat("x", 1<<16))
		}
		list := r.Refusals()
		testutil.True(t, len(list) == 1+peerRefusals &&
			list[len(list)-1].Remote == addr(1).String() && list[0].Attributes[0].Value == "9999",
			"%d refusals, the first is %+v", len(list), list[0].Attributes[0])
		n := len(list[0].Attributes[1].Value)
		testutil.True(t, n == maxDetails, "a value has %d bytes", n)
		for i := range 10_000 {
			time.Sleep(time.Millisecond)
			l.Peer(addr(i)).Report(refused)
		}
		if list = r.Refusals(); len(list) != maxRefusals || list[0].Remote != addr(9999).String() {
			t.Errorf("%d refusals, the first is of %v", len(list), list[0].Remote)
		}
	})
}

// TestEvents: lines have consecutive IDs and wake waiting readers.
func TestEvents(t *testing.T) {
	r, log, out := recorded(t, slog.LevelWarn)
	_, changed := r.Events(0)
	log.Debug("not remembered")
	log.With("with", 1).Info("only remembered", "size", 4096)
	select {
	case <-changed:
	default:
		t.Fatal("nobody was woken")
	}
	for range 3 * maxEvents {
		log.Warn("line")
	}
	n := lines(out, "msg=line")
	testutil.True(t, n == 3*maxEvents && lines(out, "remembered") == 0, "the log has %d lines", n)
	list, changed := r.Events(3 * maxEvents)
	testutil.True(t, len(list) == 1 && list[0].ID == 3*maxEvents+1 && list[0].Level == "WARN",
		"got %+v", list)
	all, _ := r.Events(0)
	testutil.True(t, len(all) <= maxEvents && len(all) >= maxEvents/2 &&
		all[len(all)-1].ID == list[0].ID, "%d events", len(all))
	select {
	case <-changed:
		t.Error("woken without an event")
	default:
	}
}

func TestEventAttributes(t *testing.T) {
	r, log, _ := recorded(t, slog.LevelInfo)
	log.Info("size changed", "size", 4096, "err", errors.New("no"))
	list, _ := r.Events(0)
	want := []observed.Attribute{{Key: "size", Value: "4096"}, {Key: "err", Value: "no"}}
	testutil.True(t, len(list) == 1 && slices.Equal(list[0].Attributes, want), "got %+v, want %q",
		list, want)
}

// TestRecordingAllocatesNothingMore: repeated refusals cost no memory.
func TestRecordingAllocatesNothingMore(t *testing.T) {
	r, _, _ := recorded(t, slog.LevelError)
	args := []any{"qid", "1", "local", addr(3), "err", errors.New("no such host")}
	testutil.Equal(t, testing.AllocsPerRun(100, func() { r.refused(addr(1), refused, args) }), 0,
		"allocations")
}

// BenchmarkRefused measures a dropped line of a peer, without and with a Recorder full of refusals
// of others. The refusal is a repeated one, or the first one of a new address.
func BenchmarkRefused(b *testing.B) {
	discard := slog.NewTextHandler(new(testutil.Log), &slog.HandlerOptions{Level: slog.LevelWarn})
	for name, handler := range map[string]slog.Handler{
		"limited": discard, "recorded": NewRecorder(discard),
	} {
		for peers, n := range map[string]int{"one": 1, "many": 2 * maxRefusals} {
			b.Run(name+"/"+peers, func(b *testing.B) {
				l := New(slog.New(handler))
				for i := range maxRefusals {
					l.Peer(addr(i)).Report(refused)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					l.Peer(addr(i%n)).Report(event.ConnectRefused, "qid", 1, "err", slog.LevelInfo)
				}
			})
		}
	}
}

// TestAbout: only lines about this host at this address, from any port.
func TestAbout(t *testing.T) {
	_, log, _ := recorded(t, slog.LevelError)
	l := New(log)
	for i := range 3 {
		for _, host := range []string{"a", "b"} {
			p := l.Peer(netip.AddrPortFrom(addr(i).Addr(), uint16(1000+i)))
			p.Report(refused, "host", host, "qid", i)
			p.Report(created, "host", host, "qid", i)
		}
		l.Peer(addr(i)).Report(event.ConnectRefused, "qid", i)
	}
	log.Warn("no peer", "host", "a")
	mapped := netip.AddrFrom16(addr(1).Addr().As16())
	events, refusals := l.About(mapped, "a")
	testutil.True(t, len(events) == 2 && events[0].Message == "refused" &&
		events[1].Message == "created" && slices.Contains(events[1].Attributes,
		observed.Attribute{Key: "qid", Value: "1"}), "events %+v", events)
	testutil.True(t, len(refusals) == 1 && strings.HasSuffix(refusals[0].Remote, ":1001") &&
		refusals[0].Message == "refused", "refusals %+v", refusals)
	e, f := New(slog.New(slog.DiscardHandler)).About(mapped, "a")
	testutil.True(t, e == nil && f == nil, "without a recorder: %v, %v", e, f)
}
