package tcp

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// load describes a benchmark over loopback: requests of req bytes answered by rsp bytes, with depth
// of them in flight.
type load struct {
	name     string
	op       nvme.Opcode
	n, depth int
	digests  bool
}

var loads = []load{
	{"read4K/qd1", nvme.NVMRead, 4096, 1, false},
	{"read4K/qd32", nvme.NVMRead, 4096, 32, false},
	{"read4K/qd128", nvme.NVMRead, 4096, 128, false},
	{"read4K/qd32/digests", nvme.NVMRead, 4096, 32, true},
	{"write4K/qd32", nvme.NVMWrite, 4096, 32, false},
	{"read128K/qd16", nvme.NVMRead, 131072, 16, false},
}

// BenchmarkLoopback compares the transport with a lower bound: bare sockets that exchange the same
// bytes. One thread each, on CPU 0 (target) and 1 (load). It reports commands per second and the
// target's CPU time per command.
func BenchmarkLoopback(b *testing.B) {
	for _, l := range loads {
		b.Run(l.name+"/floor", func(b *testing.B) { loopback(b, l, bareServer) })
		b.Run(l.name+"/tcp", func(b *testing.B) { loopback(b, l, transportServer) })
	}
}

// server starts a server and returns its address, a function that reads its CPU time, and one that
// ends it.
type server func(b *testing.B, l load) (addr string, cpu func() (user, system int64), stop func())

func threadTimes() (user, system int64) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano(), u.Stime.Nano()
}

func pinThread(cpu int) {
	var set unix.CPUSet
	set.Set(cpu % runtime.NumCPU())
	_ = unix.SchedSetaffinity(0, &set)
}

func (l load) params() pdu.Params {
	return pdu.Params{
		HeaderDigest: l.digests,
		DataDigest:   l.digests,
	}
}

// sizes returns the bytes of a request and of its response.
func (l load) sizes() (req, rsp int) {
	p := l.params()
	req, rsp = pdu.CapsuleCmdSize+p.HeaderDigestSize(), pdu.CapsuleRespSize+p.HeaderDigestSize()
	if l.op == nvme.NVMRead {
		return req, rsp + p.PDO(pdu.DataSize, 0) + l.n + p.DataDigestSize()
	}
	return req + l.n + p.DataDigestSize(), rsp
}

func loopback(b *testing.B, l load, srv server) {
	addr, cpu, stop := srv(b, l)
	defer stop()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pinThread(1)
	nc := testutil.Value(net.Dial("tcp", addr))(b)
	f := testutil.Value(nc.(*net.TCPConn).File())(b)
	defer f.Close()
	_ = nc.Close()
	fd := int(f.Fd())
	_ = unix.SetNonblock(fd, true)
	req, rsp := l.sizes()
	c := &client{p: l.params()}
	buf := make([]byte, 1<<20)
	exchange := func(out []byte, want int) {
		for len(out) > 0 || want > 0 {
			n, _ := sys.Send(fd, out, 0)
			out = out[n:]
			m, _ := sys.Recv(fd, buf[:min(want, len(buf))], 0)
			want -= m
		}
	}
	ic := pdu.ICReq(&c.p, 1)
	exchange(ic[:], pdu.ICSize)
	exchange(c.connectPDU(1, l.depth+1, 0), pdu.CapsuleRespSize+c.p.HeaderDigestSize())
	const ring = 1024
	var requests []byte
	for i := range ring + l.depth {
		sqe := rw(l.op, uint16(i), int(uint32(i)*2654435761%((diskSize-uint32(l.n))/4096))*4096,
			l.n, l.op == nvme.NVMWrite)
		var data []byte
		if l.op == nvme.NVMWrite {
			data = buf[:l.n]
		}
		requests = append(requests, c.capsule(&sqe, data)...)
	}
	at, owed, done, part := 0, l.depth*req, 0, 0
	b.ResetTimer()
	u0, s0 := cpu()
	for total := b.N; done < total; {
		if owed > 0 {
			n, _ := sys.Send(fd, requests[at:at+owed], 0)
			at, owed = at+n, owed-n
			if at >= ring*req {
				at -= ring * req
			}
		}
		n, e := sys.Recv(fd, buf, 0)
		testutil.MustTrue(b, n != 0 || e == unix.EAGAIN, "receive: %v", e)
		part += n
		done += part / rsp
		owed += part / rsp * req
		part %= rsp
	}
	u1, s1 := cpu()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "IOPS")
	b.ReportMetric(float64(u1-u0)/float64(b.N), "user-ns/op")
	b.ReportMetric(float64(s1-s0)/float64(b.N), "sys-ns/op")
}

// transportServer is a group on a spinning reactor.
func transportServer(b *testing.B, l load) (string, func() (int64, int64), func()) {
	r := testutil.Value(reactor.New(reactor.Config{CPU: 0, Spin: time.Second}))(b)
	arena := testutil.Value(mem.NewArena("test data", 64<<20))(b)
	d := newDisk(true)
	d.piece = diskSize
	t := New(Config{Log: quiet, MaxDepth: 256})
	g := testutil.Value(
		t.NewGroup(fabric.GroupConfig{Loop: r, Handler: d, Memory: testPool(arena)}))(b)
	r.Attach(g)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	ln := testutil.Value(t.Listen(fabric.Addr{
		Transport: nvme.TransportTCP,
		AddrPort:  netip.MustParseAddrPort("127.0.0.1:0"),
	}, 1,
		func(c fabric.Conn) { _ = g.Adopt(c) }))(b)
	do := func(fn func()) {
		ch := make(chan struct{})
		r.Post(func() { fn(); close(ch) })
		<-ch
	}
	cpu := func() (u, s int64) {
		do(func() { u, s = threadTimes() })
		return u, s
	}
	return ln.Addr().AddrPort.String(), cpu, func() {
		_ = t.Close()
		ended := make(chan struct{})
		r.Post(func() { g.Shutdown(func() { close(ended) }) })
		<-ended
		cancel()
		<-done
		_, _, _, _ = g.Close(), r.Close(), arena.Close(), d.data.Unmap()
	}
}

// bareServer answers without reading its input: the best that sockets can do.
func bareServer(b *testing.B, l load) (string, func() (int64, int64), func()) {
	ln := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	var user, system atomic.Int64
	var want atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		pinThread(0)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		f, _ := nc.(*net.TCPConn).File()
		_ = nc.Close()
		defer f.Close()
		fd := int(f.Fd())
		_ = unix.SetNonblock(fd, true)
		d := newDisk(true)
		defer d.data.Unmap()
		buf := make([]byte, 256<<10)
		take := func(n int) {
			for n > 0 {
				m, _ := sys.Recv(fd, buf[:n], 0)
				n -= m
			}
		}
		p := l.params()
		take(pdu.ICSize)
		_, _ = sys.Send(fd, buf[:pdu.ICSize], 0)
		take(pdu.CapsuleCmdSize + p.HeaderDigestSize() + nvme.ConnectDataSize + p.DataDigestSize())
		_, _ = sys.Send(fd, buf[:pdu.CapsuleRespSize+p.HeaderDigestSize()], 0)
		req, rsp := l.sizes()
		bare(fd, d.data.Bytes(), buf, l, req, rsp, func() {
			if want.CompareAndSwap(1, 0) {
				u, s := threadTimes()
				user.Store(u)
				system.Store(s)
				want.Store(2)
			}
		})
	}()
	cpu := func() (int64, int64) {
		want.Store(1)
		for want.Load() != 2 {
			runtime.Gosched()
		}
		return user.Load(), system.Load()
	}
	return ln.Addr().String(), cpu, func() { <-done; _ = ln.Close() }
}

func bare(fd int, area, buf []byte, l load, req, rsp int, tick func()) {
	iov := make([]sys.Iovec, 0, 256)
	head := make([]byte, rsp)
	if l.op == nvme.NVMRead {
		head = head[:rsp-l.n]
	}
	have, owe, part, seed := 0, 0, 0, uint64(1)
	for {
		tick()
		n, e := sys.Recv(fd, buf, 0)
		if n == 0 && e != unix.EAGAIN {
			return
		}
		have += n
		owe += have / req
		have %= req
		for owe > 0 {
			m := min(owe, 64)
			iov = iov[:0]
			for range m {
				iov = append(iov, sys.Iovec{})
				sys.SetIovec(&iov[len(iov)-1], head)
				if l.op == nvme.NVMRead {
					seed = seed*6364136223846793005 + 1
					off := int(seed>>33) % ((len(area) - l.n) / 4096) * 4096
					iov = append(iov, sys.Iovec{})
					sys.SetIovec(&iov[len(iov)-1], area[off:off+l.n])
				}
			}
			w, e := sys.Sendmsg(fd, sys.Advance(iov, part), 0)
			if e != 0 && e != unix.EAGAIN {
				return
			}
			total := part + w
			owe -= total / rsp
			part = total % rsp
			if total < m*rsp {
				break
			}
		}
	}
}
