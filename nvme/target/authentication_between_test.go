package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestAuthenticationBetween: other commands between the messages of the first exchange of a queue
// are refused as before it, and change nothing of it.
func TestAuthenticationBetween(t *testing.T) {
	r, _ := authHarness(t, 1)
	admin, cntlid := r.connectUnproven(0, adminArgs(testSub))
	adminCommands := func() []*fabrictest.Command {
		return []*fabrictest.Command{
			identifyCommand(nvme.CNSController, 0), propertyGetCommand(nvme.PropertyCAP),
			propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)),
			command(nvme.AdminAsyncEventReq, 0, nil), command(nvme.AdminKeepAlive, 0, nil),
			command(0xFF, 0, nil), adminArgs(testSub).command(),
		}
	}
	ioCommands := func() []*fabrictest.Command {
		data := make([]byte, 512)
		return []*fabrictest.Command{
			rw(nvme.NVMRead, 1, 0, 1, data), rw(nvme.NVMWrite, 1, 0, 1, data),
			command(nvme.NVMFlush, 1, nil), command(0xFF, 1, nil),
		}
	}
	exchange := func(q *fabrictest.Queue, others func() []*fabrictest.Command) {
		t.Helper()
		between := func() {
			t.Helper()
			for _, c := range others() {
				r.status(q, c, authenticationRequired)
			}
		}
		h := testHostSide(t)
		between()
		r.authSend(q, h.Negotiate(7))
		between()
		m, err := h.Challenged(r.authReceive(q))
		r.must(err)
		between()
		r.authSend(q, m)
		between()
		m, err = h.Succeeded(r.authReceive(q))
		r.must(err)
		between() // the controller waits for Success2
		r.authSend(q, m)
	}
	exchange(admin, adminCommands)
	r.ok(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	r.ok(admin, identifyCommand(nvme.CNSController, 0))

	io, _ := r.connectUnproven(0, (&host{args: adminArgs(testSub), cntlid: cntlid}).ioArgs(1))
	exchange(io, ioCommands)
	r.ok(io, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	n, failed := r.target.Authentications()
	testutil.True(t, n == 2 && failed == 0, "%d authentications, %d failed", n, failed)
}
