package wire

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// packets are the packets of one size in a message: n units of so many bytes. A unit is a packet,
// or a long one of segment bytes and a short one. Up to most units share a send.
type packets struct{ n, unit, segment, most int }

// BenchmarkYardstick is the least cost of a target: two threads exchange the packets of RoCEv2 with
// an MTU of 4,200, or the bytes of NVMe/TCP, over loopback, and do nothing else. It reports the
// processor time of the thread that answers. The requests for the data of a 128K write are missing.
func BenchmarkYardstick(b *testing.B) {
	response := packets{1, 32, 32, 64}
	for _, row := range []struct {
		name          string
		depth         int
		in, out       []packets
		tcpIn, tcpOut int
	}{
		{
			"4K read", 32,
			[]packets{{1, 80, 80, 64}},
			[]packets{{1, 4128, 4128, 15}, response},
			72, 24 + 4096,
		},
		{"4K write", 32, []packets{{1, 4192, 4112, 1}}, []packets{response}, 72 + 4096, 24},
		{
			"128K read", 8,
			[]packets{{1, 80, 80, 64}},
			[]packets{{32, 4128, 4128, 15}, response},
			72, 24 + 128<<10,
		},
		{
			"128K write", 8,
			[]packets{{32, 4116, 4116, 15}},
			[]packets{response},
			72 + 24 + 128<<10, 24,
		},
	} {
		b.Run(row.name+"/UDP", func(b *testing.B) {
			exchange(b, unix.SOCK_DGRAM, row.depth, row.in, row.out)
		})
		b.Run(row.name+"/TCP", func(b *testing.B) {
			exchange(b, unix.SOCK_STREAM, row.depth, []packets{{1, row.tcpIn, 0, 0}},
				[]packets{{1, row.tcpOut, 0, 0}})
		})
	}
}

// A yard is one end of a connection.
type yard struct {
	b              *testing.B
	fd             int
	tcp            bool
	in, out        []packets
	received, sent *sys.Datagrams
	iov            [2 * maxDatagrams]sys.Iovec
	control        [maxDatagrams][controlSize]byte
	buf            []byte
	bytes          int // received of messages that are not complete
}

func exchange(b *testing.B, kind, depth int, in, out []packets) {
	fds := socketsOf(b, kind)
	var ends [2]*yard
	for i := range ends {
		y := &yard{b: b, fd: fds[i], tcp: kind == unix.SOCK_STREAM, in: out, out: in}
		if i == 1 {
			y.in, y.out = in, out
		}
		y.received, y.sent = sys.NewDatagrams(maxDatagrams), sys.NewDatagrams(maxDatagrams)
		y.buf = make([]byte, maxDatagrams*datagramSize)
		for i := range maxDatagrams {
			sys.SetIovec(&y.iov[i], y.buf[i*datagramSize:][:datagramSize])
			y.received.Set(i, nil, nil, y.iov[i:i+1])
		}
		ends[i] = y
	}
	host, target := ends[0], ends[1]
	used := make(chan time.Duration, 1)
	b.ResetTimer()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before := threadTime()
		for left := b.N; left > 0; {
			n := target.receive()
			target.send(n)
			left -= n
		}
		used <- threadTime() - before
	}()
	first := min(depth, b.N)
	host.send(first)
	for left, unsent := b.N, b.N-first; left > 0; {
		n := host.receive()
		left -= n
		n = min(n, unsent)
		host.send(n)
		unsent -= n
	}
	b.ReportMetric(float64((<-used).Nanoseconds())/float64(b.N), "target-ns/IO")
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// socketsOf returns two connected sockets.
func socketsOf(b *testing.B, kind int) (fds [2]int) {
	loop := &unix.SockaddrInet4{Addr: loopA.As4()}
	for i := range fds {
		fds[i] = testutil.Value(unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0))(b)
		testutil.Must(b, unix.Bind(fds[i], loop))
	}
	name := func(i int) unix.Sockaddr { return testutil.Value(unix.Getsockname(fds[i]))(b) }
	if kind == unix.SOCK_STREAM {
		testutil.Must(b, unix.Listen(fds[0], 1))
		testutil.Must(b, unix.Connect(fds[1], name(0)))
		fd, _, err := unix.Accept4(fds[0], unix.SOCK_CLOEXEC)
		testutil.Must(b, err)
		testutil.Must(b, unix.Close(fds[0]))
		fds[0] = fd
	}
	for i, fd := range fds {
		if kind == unix.SOCK_DGRAM {
			testutil.Must(b, unix.Connect(fd, name(1-i)))
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
				b.Skipf("UDP_GRO: %v", err)
			}
			enlarge(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
			enlarge(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
		} else {
			testutil.Must(b, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
		}
		b.Cleanup(func() { _ = unix.Close(fd) })
	}
	return fds
}

// receive waits for messages and returns their number.
func (y *yard) receive() int {
	all := 0
	for _, p := range y.in {
		all += p.n * p.unit
	}
	for y.bytes < all {
		fds := []unix.PollFd{{Fd: int32(y.fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 30_000); err != unix.EINTR && n == 0 {
			y.b.Error("packets are lost")
			return y.b.N
		}
		if y.tcp {
			n, _ := sys.Recv(y.fd, y.buf, 0)
			y.bytes += max(n, 0)
			continue
		}
		n, _, _ := y.received.Recv(y.fd, 0, maxDatagrams, recvTime)
		for i := range max(n, 0) {
			size, _ := y.received.Received(i)
			y.bytes += size
		}
	}
	n := y.bytes / all
	y.bytes -= n * all
	return n
}

// send sends messages.
func (y *yard) send(messages int) {
	if y.tcp {
		for left := messages * y.out[0].unit; left > 0; {
			n, e := sys.Send(y.fd, y.buf[:min(left, len(y.buf))], 0)
			if left -= max(n, 0); e == unix.EAGAIN {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(y.fd), Events: unix.POLLOUT}}, 1000)
			}
		}
		return
	}
	sends := 0
	flush := func() {
		for first := 0; first < sends; {
			n, e := y.sent.Send(y.fd, first, sends)
			if first += max(n, 0); e == unix.EAGAIN {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(y.fd), Events: unix.POLLOUT}}, 1000)
			}
		}
		sends = 0
	}
	for _, p := range y.out {
		for left := messages * p.n; left > 0; left -= p.most {
			iov := y.iov[maxDatagrams+sends:][:1]
			sys.SetIovec(&iov[0], y.buf[:min(left, p.most)*p.unit])
			data, rest := putControl(y.control[sends][:], unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
			binary.NativeEndian.PutUint16(data, uint16(p.segment))
			y.sent.Set(sends, nil, y.control[sends][:controlSize-len(rest)], iov)
			if sends++; sends == maxDatagrams {
				flush()
			}
		}
	}
	flush()
}
