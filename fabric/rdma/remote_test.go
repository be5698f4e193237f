package rdma

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestNothingIsRemote: a host that knows the keys and addresses of the target's memory can neither
// read, write nor invalidate it. Its queue ends, and the others continue (R14).
func TestNothingIsRemote(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, good := joined(t, o, ioParam(8))
		want := 0
		if o.fabric.IWARP {
			want = 1 // the sink of RDMA READs
		}
		testutil.Equal(t, b.f.Live("target").RemoteMRs, want, "memory regions with remote rights")
		var key uint32
		b.on(func() { key = b.g.pollers[0].data.mr.RKey() })
		arena := b.arena.Region().Bytes()
		before := bytes.Clone(arena)
		attacks := map[string]verbs.SendWR{
			"write": {Opcode: verbs.WRRDMAWrite, RemoteAddr: mem.Addr(arena), RKey: key},
			"read":  {Opcode: verbs.WRRDMARead, RemoteAddr: mem.Addr(arena), RKey: key},
		}
		if !o.fabric.IWARP {
			attacks["invalidate"] = verbs.SendWR{Opcode: verbs.WRSendWithInv, InvalidateRKey: key}
		}
		for name, wr := range attacks {
			q := b.host.connect(b.addr(), ioParam(8))
			q.sges[0] = verbs.SGE{Addr: mem.Addr(q.buf), Length: 64, LKey: q.mr.LKey()}
			wr.WRID, wr.Flags, wr.NumSGE = 1<<32, verbs.SendSignaled, 1
			q.swrs[0] = wr
			testutil.Value(q.qp.PostSend(q.swrs[:], q.sges[:1]))(t)
			if _, wc, ok := q.response(); ok {
				t.Errorf("%s: %+v", name, wc)
			}
			if name != "read" { // it does not leave the host: the target serves none
				b.host.event(verbs.EventDisconnected)
			}
			q.free()
			testutil.Equal(t, good.do(good.keyed(command(opWrite, 1, 0, 512), 0, 512), nil),
				nvme.Success, "another queue after %s", name)
		}
		if !o.fabric.IWARP {
			before = before[4096:] // the data of the good queue went there
			arena = arena[4096:]
		}
		testutil.True(t, bytes.Equal(arena, before), "the memory has changed")
	})
}
