package iwarp

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestModel moves data in both directions with all operations, over sockets that take little at
// once, so that FPDUs are sent and received in parts.
func TestModel(t *testing.T) {
	for seed := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		fds := sockets(t)
		for _, fd := range fds {
			testutil.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF,
				1<<(11+rnd.IntN(8))))
		}
		p := mpa.Peer{
			CRC: seed%2 == 0, Large: seed%3 == 0, ResponderResources: uint8(1 + rnd.IntN(4)),
			RTR: mpa.RTR(seed % 4),
		}
		p.InitiatorDepth = p.ResponderResources
		nodes := [2]*node{w.node(), w.node()}
		nodes[1].connect(fds[1], p)
		p.Active = true
		nodes[0].connect(fds[0], p)
		if p.RTR == mpa.NoRTR { // a message must do
			nodes[1].recv(0, 0, 0)
			nodes[0].send(0, 0, 0)
			nodes[0].want(0, verbs.WCSuccess)
			nodes[1].want(0, verbs.WCSuccess)
		}
		// Memory: a place for each operation on both sides, source and destination.
		const ops, room = 12, 80 << 10
		place := func(side, op, end int) int { return ((side*ops+op)*2 + end) * room }
		for side, n := range nodes {
			for i := range ops {
				from, to := place(side, i, 0), place(side, i, 1)
				size := rnd.IntN(room)
				if rnd.IntN(4) == 0 {
					size = rnd.IntN(3)
				}
				for k := range w.buf[from : from+room] {
					w.buf[from+k] = byte(rnd.Uint32())
				}
				copy(w.buf[to:to+room], w.buf[from:from+room])
				clear(w.buf[to : to+size])
				id := uint64(100 + i)
				switch rnd.IntN(3) {
				case 0:
					nodes[1-side].recv(id, to, size)
					n.send(id, from, size)
				case 1:
					n.rdma(id, verbs.WRRDMAWrite, from, size, to)
				case 2:
					n.rdma(id, verbs.WRRDMARead, to, size, from)
				}
			}
		}
		last := [2]uint64{99, 99}
		for left := 2 * ops; left > 0; {
			for side, n := range nodes {
				n.poll()
				for _, wc := range n.wcs {
					testutil.MustEqual(t, wc.Status, verbs.WCSuccess, "status of %d", wc.WRID)
					if wc.Opcode != verbs.WCRecv {
						testutil.MustEqual(t, wc.WRID, last[side]+1, "completion out of order")
						last[side]++
						left--
					}
				}
				n.wcs = nil
			}
		}
		for range 1000 { // WRITEs are complete before they arrive
			nodes[0].poll()
		}
		for i := range 2 * ops {
			from, to := place(0, i, 0), place(0, i, 1)
			testutil.MustTrue(t, bytes.Equal(w.buf[from:from+room], w.buf[to:to+room]),
				"seed %d: the data of operation %d differs", seed, i)
		}
	}
}

// TestAllocations counts allocations of all kinds of work, in both roles.
func TestAllocations(t *testing.T) {
	w := newWorld(t)
	p := depths
	p.CRC = true
	a, b := w.pair(p)
	wrs := []verbs.SendWR{
		{Opcode: verbs.WRRDMAWrite, NumSGE: 1, RemoteAddr: w.at(1 << 20), RKey: w.mr.RKey()},
		{Opcode: verbs.WRRDMARead, NumSGE: 1, RemoteAddr: w.at(2 << 20), RKey: w.mr.RKey()},
		{Opcode: verbs.WRSend, NumSGE: 1, Flags: signal},
	}
	sges := []verbs.SGE{w.sge(0, 5000)}
	recvs := []verbs.RecvWR{{NumSGE: 1, SGE: [2]verbs.SGE{w.sge(1<<16, 5000)}}}
	var wcs [8]verbs.WC
	if n := testutil.AllocsPerRun(100, func() {
		_, _ = b.PostRecv(recvs)
		_, _ = a.PostSend(wrs, sges)
		for n := 0; n < 2; {
			i, _ := a.cq.Poll(wcs[:])
			j, _ := b.cq.Poll(wcs[:])
			n += i + j
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTerminate: the READ that waits gets the error that the peer reports.
func TestTerminate(t *testing.T) {
	w := newWorld(t)
	a, b := w.pair(depths)
	wr := verbs.SendWR{
		WRID: 1, Opcode: verbs.WRRDMARead, NumSGE: 1, RemoteAddr: w.at(0), RKey: w.mr.RKey() ^ 1,
	}
	testutil.Value(a.PostSend([]verbs.SendWR{wr}, []verbs.SGE{w.sge(0, 8)}))(t)
	a.want(1, verbs.WCRemAccessErr)
	testutil.True(t, a.ends == 1 && b.ends == 1, "ends: %d, %d", a.ends, b.ends)
	testutil.True(t, b.drain && !a.drain, "drained: %v, %v", b.drain, a.drain)
	testutil.Equal(t, w.st.ReceivedTerminates.Load(), 1, "Terminates")
	a.send(2, 0, 8)
	a.want(2, verbs.WCWRFlushErr)
}

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
