package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func listenAddr(s string) fabric.Addr {
	return fabric.Addr{Transport: nvme.TransportTCP, AddrPort: netip.MustParseAddrPort(s)}
}

func refuse(c fabric.Conn) { _ = c.Close() }

func TestListenErrors(t *testing.T) {
	tr := New(Config{Log: quiet})
	l := testutil.Value(tr.Listen(listenAddr("127.0.0.1:0"), 1, refuse))(t)
	for _, tt := range []struct {
		addr fabric.Addr
		is   error
		text string
	}{
		{l.Addr(), unix.EADDRINUSE, "another process listens there"},
		{fabric.Addr{}, nil, "no address"},
	} {
		_, err := tr.Listen(tt.addr, 1, refuse)
		testutil.True(t, err != nil && (tt.is == nil || errors.Is(err, tt.is)) &&
			strings.Contains(err.Error(), tt.text), "%v: %v", tt.addr, err)
	}
	testutil.Check(t, tr.Close())
	testutil.Check(t, l.Close())
	testutil.Is(t, testutil.Err(tr.Listen(listenAddr("127.0.0.1:0"), 1, refuse)), net.ErrClosed,
		"listen after Close")
}

// [::] also serves IPv4, and 0.0.0.0 cannot have the same port. A connection has its real
// addresses, in IPv4 form if they are IPv4.
func TestWildcards(t *testing.T) {
	tr := New(Config{Log: quiet})
	infos := make(chan *fabric.QueueInfo, 2)
	accept := func(c fabric.Conn) {
		for _, o := range inherited {
			if v, err := unix.GetsockoptInt(c.(*conn).fd, o.level, o.name); v != o.value ||
				err != nil {
				t.Errorf("%s is %d, %v", o.what, v, err)
			}
		}
		infos <- c.Info()
		_ = c.Close()
	}
	for any, families := range map[string]string{"0.0.0.0": "4", "[::]": "46"} {
		l, err := tr.Listen(listenAddr(any+":0"), 7, accept)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			t.Log("this kernel has no IPv6")
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().Port()
		at := fmt.Sprintf("%s:%d", any, port)
		testutil.True(t, l.Addr().AddrPort.String() == at, "listens at %v, want %s", l.Addr(), at)
		for family, ip := range map[string]string{"4": "127.0.0.1", "6": "::1"} {
			c, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(ip), port).String())
			if serves := strings.Contains(families, family); serves != (err == nil) {
				t.Errorf("%s is reached at %s: %v, want %v", any, ip, err, serves)
			}
			if err != nil {
				continue
			}
			i := testutil.Receive(t, "a connection", infos)
			testutil.True(t, i.Local.Addr().String() == ip && i.Local.Port() == port &&
				i.PortID == 7 && i.Remote.String() == c.LocalAddr().String(), "%+v", *i)
			testutil.True(t, i.QID == -1 && i.CNTLID == 0xFFFF && i.MaxDepth == 128 &&
				i.InCapsuleSize == 128<<10 && i.MSDBD == 1, "%+v", *i)
			_ = c.Close()
		}
		if any == "[::]" {
			at := listenAddr(fmt.Sprintf("0.0.0.0:%d", port))
			testutil.Is(t, testutil.Err(tr.Listen(at, 8, accept)), unix.EADDRINUSE,
				"listen at %v besides [::]", at)
		}
		testutil.Check(t, l.Close())
	}
	testutil.Check(t, tr.Close())
}

func TestConnectionLimits(t *testing.T) {
	for _, l := range []admission.Limits{{PerHost: 3}, {Connections: 3}} {
		tg := serve(t, options{cfg: Config{Limits: l}})
		tg.d.Unproven.Store(l.PerHost > 0)
		connectionLimits(t, tg)
	}
}

func connectionLimits(t *testing.T, tg *target) {
	var open []*client
	for range 3 {
		open = append(open, tg.connect(t, pdu.Params{}, 4, 0))
	}
	for range 5 {
		c := tg.dial(t)
		if !tg.d.Unproven.Load() {
			c.end()
			continue
		}
		// It could still prove its NQN.
		c.icReq(pdu.Params{})
		c.send(c.connectPDU(1, 4, 0))
		c.status(0, nvme.ConnectInvalidParameters|nvme.DNR)
		_ = c.Close()
	}
	_ = open[0].Close()
	testutil.Until(t, "a place is free", func() bool { return tg.t.Usage().Connections == 2 })
	c := tg.connect(t, pdu.Params{}, 4, 0)
	c.readBlocks(1, 0, 512)
}

// Without descriptors accept waits, and continues afterwards.
func TestNoDescriptors(t *testing.T) {
	var lines atomic.Int64
	tg, before := served(t, options{cfg: Config{Log: countingLog(&lines)}}, pdu.Params{}, 4, 0)
	waiting := tg.dial(t) // has its descriptor already
	testutil.Until(t, "both are accepted", func() bool { return tg.t.Usage().Connections == 2 })
	// The host's end of the next connection.
	fd := testutil.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	var old unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE,
		&unix.Rlimit{Cur: uint64(fd) + 8, Max: old.Max}))
	var filler []int
	restore := sync.OnceFunc(func() {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
		for _, fd := range filler {
			_ = unix.Close(fd)
		}
	})
	defer restore()
	for {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			break
		}
		filler = append(filler, n)
	}
	to := tg.l.Addr().AddrPort
	testutil.Must(t, unix.Connect(fd,
		&unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
	before.readBlocks(1, 0, 512)
	waiting.icReq(pdu.Params{})
	testutil.Until(t, "accept complains", func() bool { return lines.Load() > 0 })
	testutil.Equal(t, tg.t.Usage().Connections, 2, "connections")
	restore()
	testutil.Until(t, "the connection is accepted",
		func() bool { return tg.t.Usage().Connections == 3 })
	_ = unix.Close(fd)
	testutil.Until(t, "one has ended", func() bool { return tg.t.Usage().Connections == 2 })
}

// Hosts that connect and leave at once, with a reset or in the middle of ICReq, leave nothing
// behind, and other hosts are served.
func TestFloods(t *testing.T) {
	tg, good := served(t, options{}, pdu.Params{DataDigest: true}, 4, 0)
	ic := pdu.ICReq(&pdu.Params{HeaderDigest: true, DataDigest: true}, 1)
	bad := ic
	bad[10] = 99
	var wg sync.WaitGroup
	var failed atomic.Int64
	for w := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 40 {
				c, err := net.DialTimeout("tcp", tg.addr(), testutil.Patience)
				if err != nil {
					failed.Add(1)
					continue
				}
				switch (w + i) % 4 {
				case 1:
					_, _ = c.Write(ic[:])
				case 2:
					_, _ = c.Write(ic[:i])
				case 3:
					_, _ = c.Write(bad[:])
				}
				if i%2 == 0 {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				_ = c.Close()
			}
		}()
	}
	for i := range 50 {
		good.readBlocks(uint16(i), 0, 4096)
	}
	wg.Wait()
	testutil.True(t, failed.Load() <= 0, "%d connections failed", failed.Load())
	testutil.Until(t, "the good one is left", func() bool { return tg.t.Usage().Connections == 1 })
	good.readBlocks(1, 0, 512)
}

// A sleeping reactor wakes for input, also for the second piece, and for room to send. Idle
// connections cost nothing.
func TestIdle(t *testing.T) {
	tg := serve(t, options{})
	var all []*client
	for range 16 {
		all = append(all, tg.connect(t, pdu.Params{}, 4, 0))
	}
	for _, c := range all {
		b := c.request(nvme.NVMRead, 1, 0, 512)
		c.send(b[:7])
		c.send(b[7:])
		m := c.recv()
		testutil.MustTrue(t, m.Type == pdu.TypeC2HData, "got %v", m.Type)
		c.status(1, nvme.Success)
	}
	testutil.Until(t, "no timer, no work and no event wakes the reactor", func() (idle bool) {
		tg.do(func() {
			tg.g.checkDeadlines()
			fds := []unix.PollFd{{Fd: int32(tg.g.epfd), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 0)
			idle = !tg.g.ticking && tg.g.Arm() && n == 0 && err == nil
		})
		return idle
	})
}

// Refused digests are not echoed.
func TestNoDigests(t *testing.T) {
	h := newManual(t, options{cfg: Config{NoHeaderDigest: true, NoDataDigest: true}})
	h.open()
	r := pdu.ICReq(&pdu.Params{HeaderDigest: true, DataDigest: true}, 1)
	h.send(r[:])
	resp := (*pdu.IC)(h.recv())
	testutil.True(t, !resp.HeaderDigest() && !resp.DataDigest() && resp.MaxH2CData() == 1<<20 &&
		resp.PDA() == 0, "ICResp %x", resp[:16])
	h.close()
}

// SetDepth within the limits only.
func TestSetDepth(t *testing.T) {
	h := newManual(t, options{})
	h.connect(pdu.Params{}, 8)
	q := h.queue()
	for _, n := range []int{-1, 0, 129} {
		testutil.True(t, q.SetDepth(n, fabric.Allowed, fabric.Claim{}) != nil,
			"depth %d was accepted", n)
	}
	h.close()
}

// The CPU of a connection from another machine is the kernel's value.
func TestIncomingCPU(t *testing.T) {
	tg := serve(t, options{})
	tg.connect(t, pdu.Params{}, 4, 0)
	tg.do(func() {
		c := tg.g.queues.At(0).conn
		testutil.Equal(t, c.CPU(), -1, "a host on this machine is taken for one near CPU")
		c.info.Remote = netip.MustParseAddrPort("192.0.2.1:4711")
		if cpu := c.CPU(); cpu < 0 || cpu >= 1<<16 {
			t.Errorf("CPU %d", cpu)
		}
		c.info.Remote = netip.AddrPortFrom(c.info.Local.Addr(), 1)
	})
}

// Accepted sockets have the configured congestion control. If the kernel does not have it, the
// error says so.
func TestCongestionControl(t *testing.T) {
	tr := New(Config{Log: quiet, CongestionControl: "reno"}) // every kernel has it
	got := make(chan string, 1)
	l := testutil.Value(tr.Listen(listenAddr("127.0.0.1:0"), 1, func(c fabric.Conn) {
		name, err := unix.GetsockoptString(c.(*conn).fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		testutil.Check(t, err)
		got <- name
		_ = c.Close()
	}))(t)
	c := testutil.Value(net.Dial("tcp", l.Addr().AddrPort.String()))(t)
	testutil.Equal(t, testutil.Receive(t, "a connection", got), "reno", "the congestion control")
	testutil.Check(t, errors.Join(c.Close(), tr.Close()))
	none := New(Config{Log: quiet, CongestionControl: "none"})
	_, err := none.Listen(listenAddr("127.0.0.1:0"), 1, refuse)
	testutil.Fails(t, err, `"none"`, "an unknown congestion control")
}

// TestLink: the kernel is asked about a connection while it ends. Its descriptor is closed after
// the last call.
func TestLink(t *testing.T) {
	transport := New(Config{Log: quiet})
	accepted := make(chan *conn, 1)
	l := testutil.Value(transport.Listen(listenAddr("127.0.0.1:0"), 1,
		func(c fabric.Conn) { accepted <- c.(*conn) }))(t)
	defer transport.Close()
	for range 200 {
		peer := testutil.Value(net.Dial("tcp", l.Addr().AddrPort.String()))(t)
		c := testutil.Receive(t, "the connection", accepted)
		got, ok := c.link()
		testutil.MustTrue(t, ok && got.RTT != 0, "%+v, %v", got, ok)
		var asking sync.WaitGroup
		for range 3 {
			asking.Go(func() {
				for ok := true; ok; {
					_, ok = c.link()
				}
			})
		}
		testutil.Must(t, c.Close())
		asking.Wait()
		_, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_TYPE)
		testutil.MustTrue(t, err == unix.EBADF, "the socket is still open: %v", err)
		n := c.links.Load()
		testutil.MustTrue(t, n == linksClosed, "%d calls are left", n-linksClosed)
		peer.Close()
	}
}

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

// variants runs fn with each set of parameters that ICReq can negotiate.
func variants(t *testing.T, fn func(t *testing.T, p pdu.Params)) {
	for _, p := range []pdu.Params{
		{},
		{HeaderDigest: true},
		{DataDigest: true},
		{HeaderDigest: true, DataDigest: true},
		{HPDA: 31, HeaderDigest: true},
		{HPDA: 7, DataDigest: true},
	} {
		t.Run(fmt.Sprintf("hdgst=%v,ddgst=%v,hpda=%d", p.HeaderDigest, p.DataDigest, p.HPDA),
			func(t *testing.T) { fn(t, p) })
	}
}

// Memory of the pool, and memory attached by the handler, also in more pieces than one system call
// takes.
func TestReadWrite(t *testing.T) {
	for _, piece := range []int{0, diskSize, 1536, 512} {
		t.Run(fmt.Sprint("zero copy in pieces of ", piece), func(t *testing.T) {
			tg := serve(t, options{})
			tg.do(func() {
				if piece > 0 {
					tg.d.ZeroCopyReads, tg.d.ZeroCopyWrites, tg.d.Piece = true, true, piece
				}
			})
			variants(t, func(t *testing.T, p pdu.Params) {
				for _, cattr := range []nvme.CATTR{0, nvme.CATTRNoFlowControl} {
					readWrite(t, tg.connect(t, p, 8, cattr))
				}
			})
		})
	}
}

func readWrite(t *testing.T, c *client) {
	for i, n := range []int{512, 4096, 8192} { // in the capsule
		off := 1<<20 + i*65536
		want := random(i, n)
		sqe := rw(nvme.NVMWrite, uint16(i), off, n, true)
		c.send(c.Capsule(&sqe, want))
		c.status(uint16(i), nvme.Success)
		testutil.True(t, bytes.Equal(c.readBlocks(9, off, n), want),
			"%d bytes in the capsule: read back something else", n)
	}
	for i, n := range []int{512, 4096, 131072, 1 << 20} { // by R2T
		off := 2 << 20
		want := random(i+100, n)
		c.send(c.request(nvme.NVMWrite, 5, off, n))
		ttag := c.r2t(5, n)
		for at, k := 0, 0; at < n; k++ { // in odd pieces
			m := min([]int{1, 3, 4095, 4097, 100000}[k%5], n-at)
			flags := pdu.Flags(0)
			if at+m == n {
				flags = pdu.LastPDU
			}
			c.send(c.H2CData(flags, 5, ttag, at, want[at:at+m]))
			at += m
		}
		c.status(5, nvme.Success)
		testutil.True(t, bytes.Equal(c.readBlocks(6, off, n), want),
			"%d bytes by R2T: read back something else", n)
	}
}
