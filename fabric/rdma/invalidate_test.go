package rdma

import (
	"errors"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// invalidated sends a read with a key that may be invalidated, and reports whether it was. ok is
// false if the queue failed.
func (q *hostQueue) invalidated() (did, ok bool) {
	t := q.t
	t.Helper()
	r := testutil.Value(mem.Map("test host", 4096))(t)
	mr := testutil.Value(q.pd.RegMR(r.Bytes(),
		verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite))(t)
	s := command(opRead, 1, 0, 512)
	s.SGL1().SetKeyed(nvme.SGLSubtypeInvalidate, mem.Addr(r.Bytes()), 512, mr.RKey())
	q.send(&s, nil)
	_, wc, ok := q.response()
	testutil.Must(t, errors.Join(mr.Dereg(), r.Unmap()))
	return wc.Flags&verbs.WCWithInv != 0, ok
}

// A device that takes SEND_WITH_INV and gets stuck on it, as soft iWARP does, or fails it: one
// queue ends, and the next ones work.
func TestInvalidateFoundOut(t *testing.T) {
	for name, fault := range map[string]verbstest.Fault{
		"stuck":  {Host: "target", Ops: verbstest.OpSend, Hold: true},
		"failed": {Host: "target", Ops: verbstest.OpSend, Fail: verbs.WCLocQPOpErr},
	} {
		t.Run(name, func(t *testing.T) {
			b, q := joined(t, harnessOptions{}, ioParam(8))
			b.f.Inject(fault)
			s := command(opRead, 1, 0, 512)
			s.SGL1().SetKeyed(nvme.SGLSubtypeInvalidate, mem.Addr(q.buf), 512, q.mr.RKey())
			q.send(&s, nil)
			if fault.Hold {
				b.stick()
			}
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q = b.host.connect(b.addr(), ioParam(8))
			did, ok := q.invalidated()
			testutil.True(t, !did && ok, "afterwards: invalidated %v, answered %v", did, ok)
			testutil.True(t, strings.Contains(b.log.String(), "does not invalidate"), "log:\n%s",
				b.log)
		})
	}
}

// A device on which SEND_WITH_INV has worked is not suspected when a queue ends. Nor is a device
// that has sent responses without it.
func TestInvalidateNotSuspected(t *testing.T) {
	for name, proven := range map[string]bool{"proven": true, "not used": false} {
		t.Run(name, func(t *testing.T) {
			b, q := joined(t, harnessOptions{}, ioParam(8))
			sub := uint8(nvme.SGLSubtypeAddress)
			if proven {
				sub = nvme.SGLSubtypeInvalidate
				did, ok := q.invalidated()
				testutil.MustTrue(t, did && ok, "not invalidated")
			}
			b.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpSend, Hold: true})
			s := command(opRead, 1, 0, 512)
			s.SGL1().SetKeyed(sub, mem.Addr(q.buf), 512, q.mr.RKey())
			q.send(&s, nil)
			b.stick()
			b.host.event(verbs.EventDisconnected)
			b.idle()
			q = b.host.connect(b.addr(), ioParam(8))
			did, ok := q.invalidated()
			testutil.True(t, did && ok, "afterwards: invalidated %v, answered %v", did, ok)
		})
	}
}
