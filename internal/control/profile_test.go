package control

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestProfile: one profile at a time, within bounds; a client that leaves ends its profile.
func TestProfile(t *testing.T) {
	s := serve(t, testSource(new(feed)), quiet)
	c := newTestClient(t, s)
	var b bytes.Buffer
	err := c.Profile(t.Context(), "heap", 0, &b)
	testutil.True(t, err == nil && b.Len() != 0, "%d bytes, %v", b.Len(), err)
	status := func(name string, seconds int, want int) {
		t.Helper()
		err := c.Profile(t.Context(), name, seconds, &b)
		p, ok := errors.AsType[*Problem](err)
		testutil.True(t, ok && p.Status == want && p.Hint != "", "%v, want %d", err, want)
	}
	status("cmdline", 0, http.StatusNotFound)
	status("profile", MaxProfile+1, http.StatusBadRequest)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Profile(ctx, "trace", MaxProfile, new(bytes.Buffer)) }()
	testutil.Until(t, "a profile", func() bool { return len(s.profiling) > 0 })
	status("heap", 0, http.StatusServiceUnavailable)
	cancel()
	testutil.Is(t, testutil.Receive(t, "the end", ended), context.Canceled, "")
	testutil.Until(t, "the end of the profile of a client that is gone", func() bool {
		return len(s.profiling) == 0
	})
}

// TestTraceReaders: few clients read the flight recorder at once, and one that leaves makes room.
func TestTraceReaders(t *testing.T) {
	s := serve(t, testSource(new(feed)), quiet)
	c := newTestClient(t, s)
	seen := make(chan observed.TraceQueue, 2*maxTracing)
	follow := observed.TraceQuery{Queue: -1, Follow: true}
	keep := func(q observed.TraceQueue) error { seen <- q; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, maxTracing)
	for range maxTracing {
		go func() { ended <- c.Trace(ctx, follow, keep) }()
		testutil.Receive(t, "a queue", seen)
	}
	err := c.Trace(ctx, observed.TraceQuery{Queue: -1}, keep)
	p, ok := errors.AsType[*Problem](err)
	testutil.True(t, ok && p.Status == http.StatusServiceUnavailable, "%v", err)
	cancel()
	for range maxTracing {
		testutil.Is(t, testutil.Receive(t, "the end", ended), context.Canceled, "")
	}
	testutil.Until(t, "places of clients that are gone", func() bool { return len(s.tracing) == 0 })
	testutil.Check(t, c.Trace(t.Context(), observed.TraceQuery{Queue: 7}, keep))
}
