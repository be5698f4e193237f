package target

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// connections asks the reactors while they run.
func (r *harness) connections() (list []observed.Connection) {
	r.t.Helper()
	r.during(func() (err error) {
		list, err = r.target.Connections(context.Background())
		return err
	})
	return list
}

// TestConnections: the properties of every queue on every reactor, and the time that its host may
// be silent.
func TestConnections(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	h := r.connectHost(2, func(a *connectArgs) { a.kato = 5000 })
	unconnected := info(nvme.TransportRDMA)
	unconnected.PortID = 7
	r.w.Advance(time.Second)
	r.dialInfo(1, unconnected)
	r.ok(h.io[0], rw(nvme.NVMWrite, 1, 0, 2, make([]byte, 1024)))
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.status(h.io[0], rw(nvme.NVMRead, 7, 0, 1, make([]byte, 512)), invalidField)
	r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	r.w.Settle()

	list := r.connections()
	testutil.MustTrue(t, len(list) == 4, "%+v", list)
	if got, want := list[0], (observed.Connection{
		Transport: "rdma", Local: testLocal, Remote: testPeer, PortID: 7, Reactor: 1,
	}); got != want {
		t.Errorf("without Connect: %+v, want %+v", got, want)
	}
	for i, got := range list[1:] {
		want := observed.Connection{
			Host: testHost, Subsystem: testSub, CNTLID: h.cntlid, QID: uint16(i), Depth: 128,
			Transport: "tcp", Local: testLocal, Remote: testPeer, PortID: 1, Reactor: i % 2,
			AgeSeconds: 1, KeepAliveTimeoutSeconds: 5, KeepAliveLeftSeconds: 5,
			KeepAliveMarginSeconds: 5,
		}
		if i == 0 {
			want.Depth, want.InFlight = int(h.args.sqsize)+1, 1
			got.Commands, got.ReadBytes, got.WrittenBytes = 0, 0, 0 // as it pleases the harness
		}
		if i == 1 {
			want.Commands, want.WrittenBytes, want.ReadBytes = 4, 2048, 512
		}
		if i == 2 {
			want.Commands, want.WrittenBytes = 1, 1024
		}
		testutil.Equal(t, got, want, "queue %d", i)
	}

	r.w.Advance(4 * time.Second) // the check after 2.5 s has seen the last command
	for _, c := range r.connections()[1:] {
		testutil.True(t, c.KeepAliveLeftSeconds <= 4 && c.KeepAliveLeftSeconds >= 1,
			"queue %d: %v s left", c.QID, c.KeepAliveLeftSeconds)
	}
	testutil.MustTrue(t, r.connectHost(0).cntlid != h.cntlid, "one CNTLID for two controllers")
	for _, c := range r.connections() {
		testutil.True(t, c.Subsystem == "" || c.CNTLID == h.cntlid ||
			c.KeepAliveTimeoutSeconds == 0, "without keep alive: %+v", c)
	}
}

// TestConnectionsTimeout: a reactor that does not answer is not waited for longer than the caller
// wants.
func TestConnectionsTimeout(t *testing.T) {
	r := newHarness(t, 1)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	cancel(why)
	testutil.Is(t, testutil.Err(r.target.Connections(ctx)), why, "")
}
