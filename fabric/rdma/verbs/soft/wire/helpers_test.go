package wire

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var (
	addrA  = netip.MustParseAddr("192.0.2.1")
	addrA6 = netip.MustParseAddr("2001:db8::1")
)

// Helpers of the tests in other packages.
var Open, Send, Received, Readable, Recv = open, send, received, readable, recv

// open opens the sockets of a network and closes them after the test.
func open(t testing.TB, n Network, engines int) []Conn {
	t.Helper()
	conns, err := n.Open(engines)
	testutil.Must(t, err)
	t.Cleanup(func() {
		for _, c := range conns {
			testutil.Check(t, c.Close())
		}
	})
	return conns
}

// send puts a SEND only packet with n bytes of payload, numbered by its PSN, in the batch.
func send(t testing.TB, c Conn, p *Path, qpn, psn uint32, n int) {
	t.Helper()
	b := c.Alloc(p, packet.BTHSize+n)
	testutil.MustTrue(t, b != nil, "the batch is full")
	h := packet.BTH{Opcode: packet.SendOnly, PKey: packet.PKeyDefault, QPN: qpn, PSN: psn}
	h.Put(b)
	for i := range b[packet.BTHSize:] {
		b[packet.BTHSize+i] = byte(int(psn) + i)
	}
}

// received reports whether p is a packet of send.
func received(p Packet, psn uint32, n int) bool {
	var h packet.Header
	if !h.Parse(p.Data) || h.Kind != packet.KindSend || h.PSN != psn || len(h.Payload) != n {
		return false
	}
	for i, b := range h.Payload {
		if b != byte(int(psn)+i) {
			return false
		}
	}
	return true
}

// readable reports whether Recv has something to do within ms milliseconds.
func readable(t testing.TB, c Conn, ms int) bool {
	t.Helper()
	for !c.More() {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(c.FD()), Events: unix.POLLIN}}, ms)
		if err == unix.EINTR {
			continue
		}
		testutil.Must(t, err)
		return n == 1
	}
	return true
}

func recv(t testing.TB, c Conn) []Packet { t.Helper(); return testutil.Value(c.Recv())(t) }

// testTimer tests timer and Wake of a Conn with a real clock.
func testTimer(t *testing.T, c Conn) {
	t.Helper()
	c.SetTimer(c.Now() + time.Millisecond)
	testutil.MustTrue(t, readable(t, c, 10_000), "the timer does not fire")
	recv(t, c)
	testutil.True(t, !readable(t, c, 0), "readable after the timer was consumed")
	c.SetTimer(c.Now() + time.Hour)
	c.SetTimer(c.Now() + time.Millisecond) // earlier
	testutil.MustTrue(t, readable(t, c, 10_000), "the timer does not fire at an earlier time")
	recv(t, c)
	c.SetTimer(c.Now() + time.Millisecond)
	c.SetTimer(c.Now() + time.Hour) // the first wake-up may come, but no other
	if readable(t, c, 5) {
		recv(t, c)
	}
	testutil.True(t, !readable(t, c, 5), "readable without a cause")
	c.SetTimer(c.Now() + time.Millisecond)
	c.SetTimer(0)
	testutil.True(t, !readable(t, c, 5), "a stopped timer fires")
	c.Wake()
	c.Wake()
	testutil.True(t, readable(t, c, 0), "not readable after Wake")
	recv(t, c)
	testutil.True(t, !readable(t, c, 0), "readable after the Wake was consumed")
	c.Wake()
	testutil.True(t, readable(t, c, 0), "not readable after a second Wake")
	recv(t, c)
}
