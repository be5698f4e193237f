package app

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

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
