package roce

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// TestWritePackets: the packets of WRITEs have one length, so that they can share sends, and each
// has the address of its payload.
func TestWritePackets(t *testing.T) {
	const mtu, size, writes = 1024, 4096, 4
	p := newPair(t, options{mtu: mtu})
	n := 0
	p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
		var h packet.Header
		if testutil.MustTrue(t, h.Parse(pk.Data), "packet"); h.Kind == packet.KindWrite {
			testutil.Equal(t, len(pk.Data), packet.BTHSize+packet.RETHSize+mtu, "bytes")
			testutil.Equal(t, h.RETH, packet.RETH{
				Addr: p.b.at(n * mtu), RKey: p.b.mr.RKey(), Len: mtu,
			}, "address of packet %d", n)
			n++
		}
		return true
	}})
	fill(p.a.buf[:writes*size], 1)
	for i := range writes {
		p.a.rdma(uint64(i), verbs.WRRDMAWrite, i*size, size, p.b.at(i*size), p.b.mr.RKey())
	}
	p.settle()
	testutil.Equal(t, n, writes*size/mtu, "packets")
	testutil.Equal(t, len(p.a.take()), writes, "completions")
	p.b.filled(0, writes*size, 1)
}
