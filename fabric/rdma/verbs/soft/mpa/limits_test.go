package mpa

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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

// TestAdoptFails: nobody can connect to a kept socket that is not used, although it stays open.
func TestAdoptFails(t *testing.T) {
	m := New(nil, nil, Options{SendTime: -time.Second}) // no socket takes it
	defer m.Close()
	l := testutil.Value(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	f := testutil.Value(l.(*net.TCPListener).File())(t)
	testutil.True(t, m.adopt(f) == nil, "adopted")
	if c, err := net.Dial("tcp4", l.Addr().String()); err == nil {
		c.Close()
		t.Error("it accepts")
	}
}
