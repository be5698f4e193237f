package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestMassReconnect: hundreds of hosts that connect at once, as after a restart of the target,
// succeed at their first attempt, each with an I/O queue.
func TestMassReconnect(t *testing.T) {
	t.Parallel()
	h := New(t, Options{})
	const hosts = 300
	ctx := testutil.Context(t)
	connect := func(i int) (func(), error) {
		o := Variants[0].HostOptions()
		o.HostNQN = fmt.Sprint("nqn.2026-11.io.nvmf-target:host", i)
		o.HostID, o.Timeout = [16]byte{1, byte(i >> 8), byte(i)}, testutil.Patience
		c, err := host.Connect(ctx, host.TCP{
			Addr:   h.Addr(nvme.TransportTCP),
			Source: netip.AddrFrom4([4]byte{127, 0, 2 + byte(i>>8), byte(i)}),
		}, o)
		if err != nil {
			return nil, err
		}
		q, err := c.OpenQueue(ctx, 1, 32)
		if err != nil {
			return c.Close, err
		}
		return func() { _ = q.Close(); c.Close() }, hosttest.Flush(ctx, q, 1)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for i := range hosts {
		wg.Go(func() {
			leave, err := connect(i)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			if leave != nil {
				t.Cleanup(leave)
			}
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	testutil.MustTrue(t, err == nil, "%v\n%s", err, h.Log)
	u := h.Server.Transport(nvme.TransportTCP).Usage()
	testutil.True(t, u.Connections == 2*hosts && u.Evicted == 0 && u.Refused == 0, "%+v", u)
}
