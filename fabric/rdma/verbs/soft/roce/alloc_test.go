package roce

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestAllocations counts allocations of all kinds of work, in both roles.
func TestAllocations(t *testing.T) {
	p := newPair(t, options{})
	wrs := []verbs.SendWR{
		{Opcode: verbs.WRRDMAWrite, NumSGE: 1, RemoteAddr: p.b.at(0), RKey: p.b.mr.RKey()},
		{Opcode: verbs.WRRDMARead, NumSGE: 1, RemoteAddr: p.b.at(0), RKey: p.b.mr.RKey()},
		{Opcode: verbs.WRSend, NumSGE: 1, Flags: signal},
	}
	sges := []verbs.SGE{p.a.sge(0, 5000)}
	recvs := []verbs.RecvWR{{NumSGE: 1, SGE: [2]verbs.SGE{p.b.sge(1<<16, 5000)}}}
	var wcs [8]verbs.WC
	if n := testutil.AllocsPerRun(100, func() {
		_, _ = p.b.qp.PostRecv(recvs)
		_, _ = p.a.qp.PostSend(wrs, sges)
		for n := 0; n < 2; {
			a, _ := p.a.cq.Poll(wcs[:])
			b, _ := p.b.cq.Poll(wcs[:])
			n += a + b
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	testutil.Equal(t, p.a.st.Timeouts.Load(), 0, "timeouts")
}
