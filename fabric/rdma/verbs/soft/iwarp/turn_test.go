package iwarp

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTurn has many connections with much to do: a turn of their engine has a bound for all of them
// together, in FPDUs and in bytes.
func TestTurn(t *testing.T) {
	const n = 16
	// perTurn is the number of packets of a turn, of fpduCost bytes each (engine, maxSent).
	const perTurn = 512
	w := newWorld(t)
	var peers [n]*os.File
	for i := range peers {
		fds := sockets(t)
		w.node().connect(fds[0], mpa.Peer{ResponderResources: 1, Large: true})
		peers[i] = os.NewFile(uintptr(fds[1]), "peer")
		t.Cleanup(func() { _ = peers[i].Close() })
	}
	turns := func(peers []*os.File, counter *atomic.Uint64, b []byte, each, most int) {
		t.Helper()
		before := counter.Load()
		for _, p := range peers {
			testutil.Value(p.Write(b))(t)
		}
		for done := 0; done < len(peers)*each; {
			w.dev.Engine(0).Step()
			last := done
			done = int(counter.Load() - before)
			testutil.MustTrue(t, done > last && done-last <= most, "%d FPDUs in a turn, at most %d",
				done-last, most)
		}
	}
	const few, many = perTurn + 100, 5000
	empty := frame(header{op: opWrite, last: true}, "", false)
	turns(peers[:], &w.st.ReceivedFPDUs, bytes.Repeat(empty, few), few, few)
	// One receive has many more than its share: about as many as take 50 µs.
	turns(peers[:1], &w.st.ReceivedFPDUs, bytes.Repeat(empty, many), many, 2000)
	const size = 60 << 10
	turns(peers[:], &w.st.SentFPDUs, frame(header{
		op: opReadRequest, last: true, queue: queueRead, msn: 1, stag: 7, size: size,
		source: w.mr.RKey(), sourceTo: w.at(0),
	}, "", false), 1, perTurn*fpduCost/size+1)
}
