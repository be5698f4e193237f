package gateways

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// preempted: a write that a paused gateway has from host 2, which holds a reservation, is not
// carried out after host 1 has preempted that at the other gateway. It ends with an error; ended
// waits for that.
func preempted(t *testing.T, hosts []ways, a, b *gateway) (ended func()) {
	t.Helper()
	from, to := a, b
	if hosts[2][0].addr == b.addr {
		from, to = b, a
	}
	if hosts[1][0].addr == from.addr {
		hosts[1][0], hosts[1][1] = hosts[1][1], hosts[1][0]
	}
	ctrl, q := hosts[2][0].ctrl, hosts[2][0].q
	hosts[2][0].ctrl, hosts[2][0].q = nil, nil
	testutil.Pause(t, from.cmd.Process)
	var late host.Op
	late.Write(1, 8, 1, bytes.Repeat([]byte{9}, 512), 0)
	testutil.Must(t, testutil.Err(q.Submit(&late)))
	_ = post(t, to, control.PostFence, control.GatewayID{Gateway: from.name}) // else the lease ends
	until(t, "the other gateway serves", func() bool { return to.group(t).State == "serving" })
	hosts[1].reserve(t, 1, nvme.IOReservationRegister, 1, nvme.ReservationRegister, 0, 1)
	hosts[1].reserve(t, 1, nvme.IOReservationAcquire, 1, nvme.ReservationPreemptAndAbort, 1, 2)
	from.signal(t, syscall.SIGCONT)
	return func() {
		t.Helper()
		var done [1]host.Completion
		until(t, "the late write ends", func() bool {
			n, err := q.Poll(done[:])
			if err == nil && n == 0 {
				err = q.Wait(20 * time.Millisecond)
			}
			return err != nil || n == 1
		})
		testutil.True(t, done[0] == host.Completion{} || !done[0].Status().OK(), "a late write: %v",
			done[0].Status())
		_ = q.Close()
		ctrl.Close()
		data := make([]byte, 512)
		var read host.Op
		read.Read(1, 8, 1, data)
		testutil.True(t, hosts[1].tries(t, 1, &read) && data[0] != 9, "late data")
	}
}
