package listen

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// options returns options with keep-alive.
func options(s Sockets) Options {
	return Options{
		Sockets: s, Log: slog.New(slog.DiscardHandler),
		Set: func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		},
	}
}

func TestErrors(t *testing.T) {
	l := testutil.Value(Open(netip.MustParseAddrPort("127.0.0.1:0"), options(nil)))(t)
	for _, tt := range []struct {
		addr string
		is   error
		text string
	}{
		{l.Addr.String(), unix.EADDRINUSE, "another process listens there"},
		{"192.0.2.7:4420", unix.EADDRNOTAVAIL, "no interface of this machine has that address now"},
		{"[fe80::1]:4420", nil, "needs its interface"},
		{"[fe80::1%no-such-if]:4420", unix.EADDRNOTAVAIL, `zone "no-such-if"`},
	} {
		at := netip.MustParseAddrPort(tt.addr)
		_, err := Open(at, options(nil))
		for _, err := range []error{err, Probe(at, options(nil))} {
			testutil.True(t, err != nil && (tt.is == nil || errors.Is(err, tt.is)) &&
				strings.Contains(err.Error(), tt.text), "%v: %v", tt.addr, err)
		}
	}
	testutil.Check(t, l.Close())
}

// store is a Sockets that works across listeners, as a service manager does across programs.
type store struct {
	kept map[netip.AddrPort]*os.File
	done bool // the program ends: Drop does nothing
}

func (s *store) Take(at netip.AddrPort) *os.File {
	f := s.kept[at]
	delete(s.kept, at)
	return f
}

func (s *store) Keep(at netip.AddrPort, fd int) {
	if d, err := unix.Dup(fd); err == nil {
		s.kept[at] = os.NewFile(uintptr(d), at.String())
	}
}

func (s *store) Drop(at netip.AddrPort, fd int) {
	if !s.done {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		_ = s.kept[at].Close()
		delete(s.kept, at)
	}
}

// TestKept: a socket outlives its listener if the program ends, gets the options of the next one,
// and ends with that.
func TestKept(t *testing.T) {
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), testutil.FreePort(t))
	s := &store{kept: map[netip.AddrPort]*os.File{}, done: true}
	testutil.Must(t, testutil.Value(Open(at, options(s)))(t).Close())
	s.done = false
	fd := int(s.kept[at].Fd())
	testutil.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0))
	l := testutil.Value(Open(at, options(s)))(t)
	on := testutil.Value(unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE))(t)
	testutil.Equal(t, on, 1, "the option")
	testutil.Equal(t, l.Addr, at, "address")
	testutil.Check(t, l.Close())
	testutil.True(t, testutil.Err(net.Dial("tcp", at.String())) != nil, "a closed one accepts")
}

// TestUnfit: a kept socket that cannot be the listener is replaced by a new socket, which is kept
// instead.
func TestUnfit(t *testing.T) {
	port := testutil.FreePort(t)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	other := testutil.Value(net.Listen("tcp", fmt.Sprint("127.0.0.1:", testutil.FreePort(t))))(t)
	defer other.Close()
	elsewhere := testutil.Value(other.(*net.TCPListener).File())(t)
	packets := testutil.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer packets.Close()
	fd := testutil.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	testutil.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	testutil.Must(t, unix.Bind(fd, &unix.SockaddrInet4{
		Port: int(port), Addr: [4]byte{127, 0, 0, 1},
	}))
	udp := testutil.Value(packets.(*net.UDPConn).File())(t)
	for what, f := range map[string]*os.File{
		"another address":      elsewhere,
		"UDP":                  udp,
		"one that only binds":  os.NewFile(uintptr(fd), "bound"),
		"a file, not a socket": testutil.Value(os.Open(os.DevNull))(t),
	} {
		s := &store{kept: map[netip.AddrPort]*os.File{at: f}}
		l, err := Open(at, options(s))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		testutil.True(t, s.kept[at] != nil && s.kept[at] != f, "%s: the new socket is not kept",
			what)
		testutil.Check(t, l.Close())
	}
	testutil.True(t, testutil.Err(net.Dial("tcp", other.Addr().String())) != nil,
		"a kept socket that is not used accepts")
}

// TestNotServed: connections that cannot be served for want of something are counted, and one of
// them is logged.
func TestNotServed(t *testing.T) {
	var lines, failures atomic.Uint64
	o := options(nil)
	o.Errors = &failures
	o.Log = slog.New(slog.NewTextHandler(writer(func(b []byte) {
		testutil.True(t, strings.Contains(string(b), unix.EMFILE.Error()), "log: %s", b)
		lines.Add(1)
	}), nil))
	l := testutil.Value(Open(netip.MustParseAddrPort("127.0.0.1:0"), o))(t)
	served, done := make(chan int, 1), make(chan struct{})
	calls := 0
	go func() {
		defer close(done)
		l.Accept(func(fd int, _ unix.Sockaddr) error {
			if calls++; calls <= 2 {
				return errors.Join(unix.EMFILE, unix.Close(fd))
			}
			served <- fd
			return nil
		})
	}()
	for range 3 {
		defer testutil.Value(net.Dial("tcp", l.Addr.String()))(t).Close()
	}
	testutil.Check(t, unix.Close(testutil.Receive(t, "the third connection", served)))
	testutil.Check(t, l.Close())
	<-done
	testutil.True(t, lines.Load() == 1 && failures.Load() == 2, "%d lines, %d failures",
		lines.Load(), failures.Load())
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
