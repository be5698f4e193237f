package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// faultyDevice is a RAM device that tests may hold or fail.
func faultyDevice(t testing.TB, size int64, blockSize int) *backendtest.Faulty {
	t.Helper()
	d := backendtest.NewFaulty(ramDeviceOpen(t, size, blockSize))
	closeLast(t, d)
	return d
}

// faultySubsystem has namespace 1 on a device that tests may hold or fail.
func faultySubsystem(t *testing.T) (subsystems.Config, *backendtest.Faulty) {
	dev := faultyDevice(t, 1<<20, 512)
	return subsystems.Config{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []namespaces.Config{{NSID: 1, Device: dev}},
	}, dev
}

// onFaulty connects a host to a target with faultySubsystem.
func onFaulty(t *testing.T, reactors, queues int) (*harness, *host, *backendtest.Faulty) {
	t.Helper()
	sub, dev := faultySubsystem(t)
	r, h := joined(t, reactors, queues, sub)
	return r, h, dev
}

// TestShutdownOnce: a host that writes SHN again and again gets one shutdown and one timer, and the
// association ends two minutes after it.
func TestShutdownOnce(t *testing.T) {
	for name, sub := range map[string]string{"NVM": testSub, "discovery": nvme.DiscoveryNQN} {
		t.Run(name, func(t *testing.T) {
			r := newHarness(t, 1, ramSubsystem(t, 1))
			h := r.connectHost(0, func(a *connectArgs) { a.sub = sub })
			before := r.w.Reactors[0].Timers()
			for range 100 {
				for _, cc := range []nvme.CC{nvme.CCLinux | nvme.CCShutdownNormal, nvme.CCLinux} {
					r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(cc)))
				}
				r.w.Advance(1e9)
			}
			n := r.w.Reactors[0].Timers()
			testutil.True(t, n <= before+1, "%d timers, %d before", n, before)
			st := h.csts()
			testutil.True(t, st.SHST() == 2, "CSTS %#x", st)
			r.w.Advance(21e9)
			testutil.True(t, h.admin.Closed() && len(r.target.Controllers()) == 0,
				"the association has not ended")
		})
	}
}
