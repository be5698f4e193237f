package soft

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestRping serves connections of rping, the example program of librdmacm, until it is killed. In
// each round rping sends the address of its data, which the server READs, and then an address to
// which the server WRITEs the data back. rping compares it. The server answers each SEND of rping
// with one of any content.
//
// NVMF_TEST_RPING is ADDRESS:PORT, over RoCEv2, or over iWARP if NVMF_TEST_IWARP is set: see
// tests/lab/scenarios/soft-programs.sh.
func TestRping(t *testing.T) {
	at := os.Getenv("NVMF_TEST_RPING")
	if at == "" {
		t.Skip("needs NVMF_TEST_RPING, which tests/lab/scenarios/soft-programs.sh sets")
	}
	p := New(Options{IWARP: os.Getenv("NVMF_TEST_IWARP") != "", Background: true})
	cm := testutil.Value(p.NewCM())(t)
	l := testutil.Value(cm.Listen(netip.MustParseAddrPort(at), 4, 0))(t)
	s := newRpingServer(t, l.Device())
	for {
		switch ev := testutil.Value(cm.Next())(t); ev.Type {
		case verbs.EventConnectRequest:
			s.accept(ev.ID)
		case verbs.EventEstablished:
			go s.serve()
		case verbs.EventDisconnected:
			testutil.Must(t, ev.ID.Disconnect())
			<-s.served
			testutil.Must(t, s.qp.Destroy())
			for n := 1; n > 0; n = testutil.Value(s.cq.Poll(make([]verbs.WC, 1)))(t) {
			}
			testutil.Must(t, ev.ID.Destroy())
		}
	}
}

// Places in the memory of an rpingServer.
const (
	rpingInfo = 16 // size of a message: address, key and length, big-endian
	rpingData = 64 // the data read, after two messages
	rpingSize = 128 << 10
)

type rpingServer struct {
	t  *testing.T
	pd verbs.PD
	cq verbs.CQ
	ch verbs.CompChannel
	mr verbs.MR
	b  []byte
	qp verbs.QP

	served chan struct{}
}

func newRpingServer(t *testing.T, d verbs.Device) *rpingServer {
	s := &rpingServer{t: t, served: make(chan struct{}, 1)}
	s.b = testutil.Value(mem.Map("rping", rpingSize))(t).Bytes()
	s.pd = testutil.Value(d.AllocPD())(t)
	s.ch = testutil.Value(d.CreateCompChannel())(t)
	s.cq = testutil.Value(d.CreateCQ(16, s.ch, 0))(t)
	s.mr = testutil.Value(s.pd.RegMR(s.b, verbs.AccessLocalWrite))(t)
	return s
}

func (s *rpingServer) accept(id verbs.ID) {
	s.qp = testutil.Value(id.CreateQP(s.pd, verbs.QPInit{
		SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1,
	}))(s.t)
	s.postRecv()
	testutil.Must(s.t, id.Accept(verbs.ConnParam{
		ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7,
	}))
}

// serve makes rounds until the connection ends.
func (s *rpingServer) serve() {
	defer func() { s.served <- struct{}{} }()
	for op := verbs.WRRDMARead; s.next(); op ^= verbs.WRRDMARead ^ verbs.WRRDMAWrite {
		wr := verbs.SendWR{
			Opcode: op, RemoteAddr: binary.BigEndian.Uint64(s.b),
			RKey: binary.BigEndian.Uint32(s.b[8:]),
		}
		n := binary.BigEndian.Uint32(s.b[12:])
		testutil.MustTrue(s.t, n <= rpingSize-rpingData, "%d bytes", n)
		s.postRecv()
		if !s.send(wr, rpingData, n) || !s.send(verbs.SendWR{Opcode: verbs.WRSend}, 0, rpingInfo) {
			return
		}
	}
}

func (s *rpingServer) sge(off int, n uint32) verbs.SGE {
	return verbs.SGE{Addr: mem.Addr(s.b) + uint64(off), Length: n, LKey: s.mr.LKey()}
}

func (s *rpingServer) postRecv() {
	_, err := s.qp.PostRecv([]verbs.RecvWR{{
		NumSGE: 1, SGE: [2]verbs.SGE{s.sge(0, rpingInfo)}, WRID: 1,
	}})
	testutil.Must(s.t, err)
}

// send posts a work request and waits for its end.
func (s *rpingServer) send(wr verbs.SendWR, off int, n uint32) bool {
	wr.NumSGE, wr.Flags = 1, verbs.SendSignaled
	_, err := s.qp.PostSend([]verbs.SendWR{wr}, []verbs.SGE{s.sge(off, n)})
	testutil.Must(s.t, err)
	return s.next()
}

// next waits for a completion. It reports false if the connection has ended.
func (s *rpingServer) next() bool {
	var wc [1]verbs.WC
	for {
		testutil.Must(s.t, s.cq.ReqNotify())
		n, err := s.cq.Poll(wc[:])
		testutil.Must(s.t, err)
		if n > 0 {
			break
		}
		fd := []unix.PollFd{{Fd: int32(s.ch.FD()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fd, -1); err != unix.EINTR {
			testutil.Must(s.t, err)
		}
		testutil.Value(s.ch.Drain())(s.t)
	}
	testutil.True(s.t, wc[0].Status == verbs.WCSuccess || wc[0].Status == verbs.WCWRFlushErr,
		"completion %+v", wc[0])
	return wc[0].Status == verbs.WCSuccess
}
