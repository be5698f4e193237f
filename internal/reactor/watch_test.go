package reactor

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func pipe(t *testing.T) (rd, wr int) {
	t.Helper()
	var p [2]int
	testutil.Must(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	t.Cleanup(func() { _, _ = unix.Close(p[0]), unix.Close(p[1]) })
	return p[0], p[1]
}

func put(t *testing.T, fd int) {
	t.Helper()
	testutil.Check(t, testutil.Err(unix.Write(fd, []byte{1})))
}

func TestWatch(t *testing.T) {
	for name, busy := range map[string]int{"idle": 0, "busy": 1} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{CPU: -1}, &poller{poll: func(int) int { return busy }})
			rd, wr := pipe(t)
			got := make(chan uint32)
			var buf [16]byte
			do(t, r, func() {
				testutil.Check(t, r.Watch(rd, unix.EPOLLIN, func(ev uint32) {
					_, _ = unix.Read(rd, buf[:])
					got <- ev
				}))
			})
			for range 20 {
				put(t, wr)
				testutil.MustEqual(t, testutil.Receive(t, "the event", got), unix.EPOLLIN, "event")
			}
			do(t, r, func() { testutil.Check(t, r.Unwatch(rd)) })
			put(t, wr)
			do(t, r, func() {})
			do(t, r, func() { testutil.Equal(t, r.watches.n, 0, "watches are left") })
		})
	}
}

// TestUnwatchWithinBatch: two descriptors are ready. The first callback unwatches the other
// descriptor, closes it, and watches a new one with the same number. Neither the old nor the new
// function may be called for the old event.
func TestUnwatchWithinBatch(t *testing.T) {
	r := start(t, Config{CPU: -1})
	var rd, wr [2]int
	for i := range rd {
		rd[i], wr[i] = pipe(t)
		put(t, wr[i])
	}
	var calls []int
	do(t, r, func() {
		for i := range rd {
			testutil.Check(t, r.Watch(rd[i], unix.EPOLLIN, func(uint32) {
				calls = append(calls, i)
				other := rd[1-i]
				testutil.Check(t, errors.Join(r.Unwatch(other), r.Unwatch(rd[i])))
				// same number, another file, not readable
				testutil.Check(t, unix.Dup2(mustEventfd(t), other))
				testutil.Check(t, r.Watch(other, unix.EPOLLIN,
					func(uint32) { t.Error("called for an event of its predecessor") }))
			}))
		}
		testutil.Equal(t, r.pollEvents(), 1, "functions were called")
	})
	testutil.Equal(t, len(calls), 1, "calls: %v", calls)
}

func mustEventfd(t *testing.T) int {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	testutil.Check(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestWatchErrors(t *testing.T) {
	r := start(t, Config{CPU: -1})
	rd, _ := pipe(t)
	do(t, r, func() {
		fn := func(uint32) {}
		for what, got := range map[string]struct{ err, want error }{
			"watch -1":          {r.Watch(-1, unix.EPOLLIN, fn), unix.EBADF},
			"watch closed":      {r.Watch(1<<19, unix.EPOLLIN, fn), unix.EBADF},
			"watch":             {r.Watch(rd, unix.EPOLLIN, fn), nil},
			"watch again":       {r.Watch(rd, unix.EPOLLIN, fn), unix.EEXIST},
			"unwatch unwatched": {r.Unwatch(rd + 1), unix.ENOENT},
			"unwatch -1":        {r.Unwatch(-1), unix.ENOENT},
		} {
			testutil.True(t, errors.Is(got.err, got.want), "%s: %v, want %v", what, got.err,
				got.want)
		}
		testutil.Check(t, r.Unwatch(rd))
	})
}

// TestEventFDIsWork: a write of the kernel to the eventfd while the reactor is awake makes it poll
// again before it asks pollers whether it may sleep.
func TestEventFDIsWork(t *testing.T) {
	r := testutil.Value(New(Config{CPU: -1}))(t)
	defer func() { testutil.Check(t, r.Close()) }()
	for round := range 3 {
		testutil.Value(unix.Write(r.EventFD(), eventOne))(t)
		testutil.Equal(t, r.pollEvents(), 1, "events in round %d", round)
		testutil.Equal(t, r.pollEvents(), 0, "events in round %d, again", round)
	}
}
