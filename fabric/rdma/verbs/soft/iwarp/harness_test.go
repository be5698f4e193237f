package iwarp

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

const signal = verbs.SendSignaled

// A world is one engine with queue pairs, and memory that all of them use. Nothing runs by itself.
type world struct {
	t   testing.TB
	net *Network
	dev *engine.Device
	pd  *engine.PD
	buf []byte
	mr  verbs.MR // all rights
	st  Stats
}

const bufSize = 4 << 20

func newWorld(t testing.TB) *world {
	w := &world{t: t, net: NewNetwork(nil), buf: make([]byte, bufSize)}
	w.dev = testutil.Value(engine.New(w.net, engine.Options{}))(t)
	w.pd = testutil.Value(w.dev.AllocPD())(t).(*engine.PD)
	w.mr = w.region(0, bufSize,
		verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	t.Cleanup(func() {
		testutil.Check(t, w.mr.Dereg())
		testutil.Check(t, w.pd.Dealloc())
		testutil.Check(t, w.dev.Close())
	})
	return w
}

func (w *world) region(off, n int, access verbs.Access) verbs.MR {
	return testutil.Value(w.pd.RegMR(w.buf[off:off+n], access))(w.t)
}

func (w *world) at(off int) uint64 { return mem.Addr(w.buf) + uint64(off) }

func (w *world) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: w.at(off), Length: uint32(n), LKey: w.mr.LKey()}
}

// A node is a queue pair with a completion queue of its own.
type node struct {
	*QP
	w     *world
	cq    *engine.CQ
	wcs   []verbs.WC
	ready int // calls of First
	ends  int // calls of Ended
	drain bool
}

func (w *world) node() *node {
	n := &node{w: w}
	n.cq = testutil.Value(w.dev.CreateCQ(256, nil, 0))(w.t).(*engine.CQ)
	n.QP = testutil.Value(New(w.net, w.pd, verbs.QPInit{
		SendCQ: n.cq, RecvCQ: n.cq, MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 3, MaxRecvSGE: 2,
	}, &w.st))(w.t)
	w.t.Cleanup(func() {
		testutil.Check(w.t, n.Destroy())
		testutil.Check(w.t, n.cq.Destroy())
	})
	return n
}

// connect connects the node to a socket.
func (n *node) connect(fd int, p mpa.Peer) {
	p.FD = fd
	p.First = func() { n.ready++ }
	p.Ended = func(drain bool) {
		n.ends++
		n.drain = drain
		_ = unix.Close(fd)
	}
	testutil.Must(n.w.t, n.Connect(p))
}

// sockets makes a pair of stream sockets.
func sockets(t testing.TB) [2]int {
	return testutil.Value(unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
}

// pair makes two connected queue pairs; a is the active side.
func (w *world) pair(p mpa.Peer) (a, b *node) {
	fds := sockets(w.t)
	a, b = w.node(), w.node()
	b.connect(fds[1], p)
	p.Active = true
	a.connect(fds[0], p)
	return a, b
}

var depths = mpa.Peer{ResponderResources: 4, InitiatorDepth: 4}

// poll runs the engine and keeps the completions.
func (n *node) poll() {
	var wcs [32]verbs.WC
	k := testutil.Value(n.cq.Poll(wcs[:]))(n.w.t)
	n.wcs = append(n.wcs, wcs[:k]...)
}

// wait runs the engine until the node has its next completion.
func (n *node) wait() verbs.WC {
	n.w.t.Helper()
	for range 100000 {
		if n.poll(); len(n.wcs) > 0 {
			wc := n.wcs[0]
			n.wcs = n.wcs[1:]
			return wc
		}
	}
	n.w.t.Fatal("no completion")
	panic("unreachable")
}

func (n *node) want(id uint64, status verbs.WCStatus) verbs.WC {
	n.w.t.Helper()
	wc := n.wait()
	testutil.MustTrue(n.w.t, wc.WRID == id && wc.Status == status && wc.QPNum == n.Num(),
		"completion %+v, want status %d of %d", wc, status, id)
	return wc
}

func (n *node) recv(id uint64, off, size int) {
	n.w.t.Helper()
	wr := verbs.RecvWR{WRID: id, NumSGE: 1, SGE: [2]verbs.SGE{n.w.sge(off, size)}}
	testutil.Value(n.PostRecv([]verbs.RecvWR{wr}))(n.w.t)
}

func (n *node) send(id uint64, off, size int) {
	n.w.t.Helper()
	wr := verbs.SendWR{WRID: id, Opcode: verbs.WRSend, Flags: signal, NumSGE: 1}
	testutil.Value(n.PostSend([]verbs.SendWR{wr}, []verbs.SGE{n.w.sge(off, size)}))(n.w.t)
}

// rdma posts a READ or WRITE between two places of the world's memory.
func (n *node) rdma(id uint64, op verbs.SendOpcode, off, size, remote int) {
	n.w.t.Helper()
	wr := verbs.SendWR{
		WRID: id, Opcode: op, Flags: signal, NumSGE: 1, RemoteAddr: n.w.at(remote),
		RKey: n.w.mr.RKey(),
	}
	testutil.Value(n.PostSend([]verbs.SendWR{wr}, []verbs.SGE{n.w.sge(off, size)}))(n.w.t)
}

// An attacker is the bare socket of a peer, with a victim and a connection beside it.
type attacker struct {
	*world
	victim    *node
	socket    *os.File
	near, far *node
}

func newAttacker(t testing.TB, p mpa.Peer) *attacker {
	x := &attacker{world: newWorld(t)}
	fds := sockets(t)
	x.victim = x.node()
	x.victim.connect(fds[0], p)
	x.socket = os.NewFile(uintptr(fds[1]), "attacker")
	t.Cleanup(func() { _ = x.socket.Close() })
	x.near, x.far = x.pair(depths)
	return x
}

// neighbour moves a message over the connection beside.
func (x *attacker) neighbour() {
	x.t.Helper()
	x.far.recv(1, 3<<20, 100)
	x.near.send(2, 3<<20+4096, 100)
	x.near.want(2, verbs.WCSuccess)
	x.far.want(1, verbs.WCSuccess)
}

// write sends bytes.
func (x *attacker) write(b []byte) {
	x.t.Helper()
	testutil.Value(x.socket.Write(b))(x.t)
}

// writeSlowly sends bytes one by one, until the victim ends the connection.
func (x *attacker) writeSlowly(b []byte) {
	for i := 0; i < len(b) && x.victim.ends == 0; i++ {
		x.write(b[i : i+1])
		x.victim.poll()
	}
}

// step runs the engine until nothing moves.
func (x *attacker) step() {
	for range 10 {
		x.victim.poll()
	}
}

// frame makes an FPDU.
func frame(h header, payload string, crc bool) []byte {
	h.n = uint32(len(payload))
	b := make([]byte, maxHeader)
	b = append(b[:h.put(b)], payload...)
	var tail [maxTrailer]byte
	return append(b, tail[:putTrailer(tail[:], len(b), sum(crc, b), crc)]...)
}

func sum(use bool, b []byte) uint32 { return crc(use, 0, b) }

// terminated reads the Terminate message that the victim sends last, and returns its reason.
func (x *attacker) terminated() string {
	x.t.Helper()
	x.step()
	testutil.MustEqual(x.t, x.victim.ends, 1, "ends of the connection")
	b := testutil.Value(io.ReadAll(x.socket))(x.t)
	for len(b) > 0 {
		op, n, why := parsePrefix(b)
		testutil.MustEqual(x.t, why, noReason, "FPDU of the victim")
		if op == opTerminate {
			return fmt.Sprintf("%04x", binary.BigEndian.Uint16(b[untaggedSize:]))
		}
		n += lengthSize
		b = b[n+pad(n)+crcSize:]
	}
	return "nothing"
}
