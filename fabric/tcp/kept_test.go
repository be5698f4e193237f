package tcp

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// store is a Sockets that works across transports, as a service manager does across programs.
type store struct {
	t    *testing.T
	kept map[netip.AddrPort]*os.File
	done bool // the program ends: Drop does nothing
}

func (s *store) Take(at netip.AddrPort) *os.File {
	f := s.kept[at]
	delete(s.kept, at)
	return f
}

func (s *store) Keep(at netip.AddrPort, fd int) {
	d, err := unix.Dup(fd)
	testutil.True(s.t, err == nil && s.kept[at] == nil, "%v is kept twice, or %v", at, err)
	s.kept[at] = os.NewFile(uintptr(d), at.String())
}

func (s *store) Drop(at netip.AddrPort, fd int) {
	if s.done {
		return
	}
	s.t.Helper()
	testutil.Check(s.t, unix.Shutdown(fd, unix.SHUT_RDWR))
	_ = s.kept[at].Close()
	delete(s.kept, at)
}

// TestKeptSockets: a host that connects after a transport has ended is served by the next one, with
// its options. A listener that is closed while the program continues is closed for good.
func TestKeptSockets(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "[::1]", "[::]"} {
		s := &store{t, map[netip.AddrPort]*os.File{}, false}
		at := listenAddr(ip + ":" + strconv.Itoa(int(testutil.FreePort(t))))
		before := New(Config{Log: quiet, Sockets: s})
		if _, err := before.Listen(at, 1, refuse); err != nil {
			t.Log(ip, err) // no IPv6
			continue
		}
		s.done = true
		testutil.Must(t, before.Close())
		c, err := net.Dial("tcp", at.AddrPort.String())
		testutil.MustEqual(t, err, nil, "%s: refused while nobody accepts", ip)
		defer c.Close()

		s.done = false
		f := s.kept[at.AddrPort]
		d := testutil.Value(unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0))(t)
		defer unix.Close(d)
		testutil.Must(t, unix.SetsockoptInt(d, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0))
		testutil.Must(t, unix.SetsockoptInt(d, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30000))
		accepted := make(chan netip.AddrPort, 1)
		tr := New(Config{Log: quiet, Sockets: s})
		l := testutil.Value(tr.Listen(at, 1, func(c fabric.Conn) {
			accepted <- c.Info().Remote
			_ = c.Close()
		}))(t)
		a := testutil.Receive(t, "the connection", accepted)
		testutil.True(t, a.String() == c.LocalAddr().String(), "accepted %v, want %v", a,
			c.LocalAddr())
		for _, o := range inherited {
			testutil.Equal(t, testutil.Value(unix.GetsockoptInt(d, o.level, o.name))(t), o.value,
				"%s", o.what)
		}
		testutil.Equal(t, testutil.Value(unix.GetsockoptInt(d, unix.IPPROTO_TCP,
			unix.TCP_USER_TIMEOUT))(t), 0, "%s: the timeout of an iWARP listener", ip)
		testutil.Check(t, l.Close())
		testutil.True(t, testutil.Err(net.Dial("tcp", at.AddrPort.String())) != nil,
			"%s: a closed listener accepts", ip)
		testutil.Check(t, tr.Close())
	}
}

// TestKeptSocketUnfit: a kept socket that cannot be the listener is replaced by a new socket, which
// is kept instead.
func TestKeptSocketUnfit(t *testing.T) {
	port := testutil.FreePort(t)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	elsewhere, _, err := listen(netip.MustParseAddrPort("127.0.0.1:0"), &Config{})
	testutil.Must(t, err)
	packets := testutil.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer packets.Close()
	fd := testutil.Value(bind(at, &Config{}))(t)
	udp := testutil.Value(packets.(*net.UDPConn).File())(t)
	for what, f := range map[string]*os.File{
		"another address":      os.NewFile(uintptr(elsewhere), "elsewhere"),
		"UDP":                  udp,
		"one that only binds":  os.NewFile(uintptr(fd), "bound"),
		"a file, not a socket": os.Stdin,
	} {
		s := &store{t, map[netip.AddrPort]*os.File{at: f}, false}
		if f == os.Stdin {
			s.kept[at], err = os.Open(os.DevNull)
			testutil.MustTrue(t, err == nil, "%v", err)
		}
		tr := New(Config{Log: quiet, Sockets: s})
		l, err := tr.Listen(listenAddr(at.String()), 1, refuse)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		testutil.True(t, s.kept[at] != nil && s.kept[at] != f, "%s: the new socket is not kept",
			what)
		testutil.Check(t, l.Close())
	}
}
