package mpa

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestFrame is the request of the kernel's siw, with a depth of 32 in both directions.
func TestFrame(t *testing.T) {
	want := []byte("MPA ID Req Frame\x10\x02\x00\x06\x00\x20\x40\x10hi")
	f := &frame{revision: 2, flags: flagEnhanced, ird: 32, ord: rtrRead | 16, private: []byte("hi")}
	testutil.Equal(t, string(f.encode(requestKey)), string(want), "frame")
	got := testutil.Value(readFrame(bytes.NewReader(want), requestKey))(t)
	testutil.Equal(t, string(got.encode(requestKey)), string(want), "frame read back")
	ird, ord := got.depths()
	testutil.True(t, ird == 32 && ord == 16 && got.rtr() == NoRTR, "%d, %d, %v", ird, ord,
		got.rtr())

	old := []byte("MPA ID Rep Frame\x40\x01\x00\x02no")
	got = testutil.Value(readFrame(bytes.NewReader(old), replyKey))(t)
	ird, ord = got.depths()
	testutil.True(t, ird == 1 && ord == 1 && got.is(flagCRC) && string(got.private) == "no",
		"%+v", got)
}

// TestRTR chooses a WRITE or a READ, also if only a zero-length SEND is offered. A reply must
// choose one that was offered.
func TestRTR(t *testing.T) {
	const zeroSend = 0x4000 // RFC 6581, section 9.2
	for _, c := range []struct {
		ird, ord uint16
		want     RTR
	}{
		{0, rtrWrite, NoRTR},
		{peerToPeer, rtrWrite | rtrRead, RTRWrite},
		{peerToPeer | zeroSend, rtrRead, RTRRead},
		{peerToPeer | zeroSend, 0, RTRWrite},
		{peerToPeer, 0, RTRWrite},
	} {
		f := frame{revision: 2, flags: flagEnhanced, ird: c.ird, ord: c.ord}
		testutil.Equal(t, f.rtr(), c.want, "RTR of %#x, %#x", c.ird, c.ord)
		reply := frame{revision: 2, flags: flagEnhanced}
		reply.setRTR(c.want)
		testutil.Equal(t, reply.rtr(), c.want, "RTR of the reply")
	}
	offer := frame{revision: 2, flags: flagEnhanced, ird: peerToPeer, ord: rtrWrite | rtrRead}
	for _, ird := range []uint16{peerToPeer | zeroSend, peerToPeer, 0} {
		reply := frame{revision: 2, flags: flagEnhanced, ird: ird}
		testutil.True(t, !offer.agrees(&reply), "agrees with a reply of %#x", ird)
	}
}

// TestBadFrames: none of them makes us wait for the private data, or hold more than it may have.
func TestBadFrames(t *testing.T) {
	for _, c := range []string{
		"MPA ID Req Frame\x00\x01\xff\xff", "MPA ID Req Frame\x00\x01\x02\x01",
		"MPA ID Req Frame\x00\x03\x00\x00", "MPA ID Req Frame\x00\x00\x00\x00",
		"MPA ID Rep Frame\x00\x01\x00\x00", "MPA ID Req Frame\x10\x02\x00\x03abc",
	} {
		r := bytes.NewReader([]byte(c + "more"))
		testutil.Is(t, testutil.Err(readFrame(r, requestKey)), errFrame, "%q", c)
		testutil.True(t, r.Len() >= 4, "%q: it has read on", c)
	}
}

// FuzzFrame reads any bytes.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("MPA ID Req Frame\x10\x02\x00\x06\x00\x20\x40\x10hi"))
	f.Add([]byte("MPA ID Req Frame\x00\x01\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		q, err := readFrame(r, requestKey)
		if err != nil {
			return
		}
		read := b[:len(b)-r.Len()]
		again := testutil.Value(readFrame(bytes.NewReader(q.encode(requestKey)), requestKey))(t)
		testutil.True(t, again.flags == q.flags && again.revision == q.revision &&
			again.ird == q.ird && again.ord == q.ord && bytes.Equal(again.private, q.private),
			"%+v read back as %+v", q, again)
		testutil.True(t, len(read) <= headerSize+maxPrivate && len(q.private) <= maxPrivate,
			"%d bytes read", len(read))
		q.rtr()
		_ = q.agrees(again)
		_, err = readFrame(bytes.NewReader(read[:len(read)-1]), requestKey)
		testutil.True(t, err == io.EOF || err == io.ErrUnexpectedEOF, "a byte less: %v", err)
	})
}

// fakeConn is a connection from an address.
type fakeConn struct {
	net.Conn
	from   net.TCPAddr
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr { return &c.from }

func (c *fakeConn) Close() error {
	c.closed = true
	return nil
}

// TestAdmit has many hosts with connections that send no request: each has its share, and a new
// connection takes the place of the oldest of all.
func TestAdmit(t *testing.T) {
	m := New(nil, nil, Options{})
	defer m.Close()
	var conns []*fakeConn
	admit := func(host byte) bool {
		c := &fakeConn{from: net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: len(conns)}}
		conns = append(conns, c)
		return m.admit(c)
	}
	for i := range maxHalfHost {
		testutil.MustTrue(t, admit(1), "connection %d of a host", i)
	}
	testutil.True(t, !admit(1), "one more")
	conns = conns[:maxHalfHost]
	for i := maxHalfHost; i < maxHalf; i++ {
		testutil.MustTrue(t, admit(byte(2+i/maxHalfHost)), "connection %d", i)
	}
	testutil.True(t, !conns[0].closed, "the oldest was closed too early")
	testutil.True(t, admit(200), "a connection of another host")
	testutil.True(t, conns[0].closed && !conns[1].closed, "the oldest has to give way")
	testutil.Equal(t, len(m.half), maxHalf, "connections")
	for _, c := range conns {
		m.arrived(c)
		m.leave(remoteAddr(c))
	}
	testutil.True(t, len(m.half) == 0 && len(m.hosts) == 0, "left: %d, %v", len(m.half), m.hosts)
}

// TestNoDescriptors: a listener that cannot accept for want of a descriptor says so once, and
// accepts when there is one.
func TestNoDescriptors(t *testing.T) {
	var log bytes.Buffer
	m := New(nil, nil, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	cm := testutil.Value(m.NewCM())(t)
	l := testutil.Value(cm.Listen(netip.MustParseAddrPort("0.0.0.0:0"), 0, 0))(t)
	fd := testutil.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	var old unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	// The number of the next descriptor would be the limit.
	next := testutil.Value(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{
		Cur: uint64(next), Max: old.Max,
	}))
	restore := func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) }
	defer restore()
	testutil.Must(t, unix.Close(next))
	testutil.Must(t, unix.Connect(fd, &unix.SockaddrInet4{
		Port: int(l.Local().Port()), Addr: [4]byte{127, 0, 0, 1},
	}))
	testutil.Until(t, "accept fails several times",
		func() bool { return m.stats.AcceptErrors.Load() > 2 })
	testutil.Equal(t, m.stats.Accepted.Load(), 0, "connections accepted")
	restore()
	testutil.Until(t, "the connection is accepted",
		func() bool { return m.stats.Accepted.Load() == 1 })
	for _, end := range []func() error{
		func() error { return unix.Close(fd) }, l.Destroy, cm.Close, m.Close,
	} {
		testutil.Check(t, end())
	}
	testutil.True(t, strings.Count(log.String(), "accept failed") == 1 &&
		strings.Contains(log.String(), "LimitNOFILE="), "log: %s", &log)
}

// TestResetBeforeAccept: a peer that resets its connection before it is accepted, which then has no
// address of the peer, ends nothing else.
func TestResetBeforeAccept(t *testing.T) {
	m := New(nil, nil, Options{})
	cm := testutil.Value(m.NewCM())(t)
	l := testutil.Value(cm.Listen(netip.MustParseAddrPort("0.0.0.0:0"), 0, 0))(t)
	at := fmt.Sprintf("127.0.0.1:%d", l.Local().Port())
	m.mu.Lock()
	first := testutil.Value(net.Dial("tcp", at))(t)
	testutil.Until(t, "accept waits for the lock",
		func() bool { return m.stats.Accepted.Load() == 1 })
	reset := testutil.Value(net.Dial("tcp", at))(t)
	testutil.Check(t, reset.(*net.TCPConn).SetLinger(0))
	testutil.Check(t, reset.Close())
	m.mu.Unlock()
	testutil.Until(t, "the reset is noticed", func() bool { return m.stats.Invalid.Load() == 1 })
	testutil.Equal(t, m.stats.Accepted.Load(), 2, "connections accepted")
	for _, end := range []func() error{first.Close, l.Destroy, cm.Close, m.Close} {
		testutil.Check(t, end())
	}
}

// TestNoConnection: a connection that cannot be served is reported to the listener, which logs it.
func TestNoConnection(t *testing.T) {
	m := New(nil, nil, Options{})
	fd := testutil.Value(unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
	testutil.True(t, m.accept(nil, fd, 0) != nil, "no error")
	testutil.Check(t, m.Close())
}

// TestProbes: an idle connection survives lost probes.
func TestProbes(t *testing.T) {
	m := New(nil, nil, Options{})
	cm := testutil.Value(m.NewCM())(t)
	l := testutil.Value(cm.Listen(netip.MustParseAddrPort("0.0.0.0:0"), 0, 0))(t)
	c := testutil.Value(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.Local().Port())))(t)
	var accepted net.Conn
	testutil.Until(t, "accepted", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.half) > 0 {
			accepted = m.half[0]
		}
		return accepted != nil
	})
	option := func(name int) (n int) {
		raw := testutil.Value(accepted.(*net.TCPConn).SyscallConn())(t)
		testutil.Must(t, raw.Control(func(fd uintptr) {
			n = testutil.Value(unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name))(t)
		}))
		return n
	}
	first, every := option(unix.TCP_KEEPIDLE), option(unix.TCP_KEEPINTVL)
	end := option(unix.TCP_USER_TIMEOUT) / 1000
	testutil.True(t, end > 0 && first+3*every <= end,
		"probes after %d s, every %d s; the end after %d s", first, every, end)
	for _, end := range []func() error{c.Close, l.Destroy, cm.Close, m.Close} {
		testutil.Check(t, end())
	}
}
