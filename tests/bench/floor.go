package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// The floor measures the limits of loopback TCP for messages of the sizes of NVMe/TCP, without
// NVMe: a client keeps a number of small requests in flight on each connection, and a server
// answers each with one response gathered from a large memory area. Both sides poll.
// testdata/tcpfloor.c is its definition; "bench -check-floor" compares the two.

const (
	floorArea    = 256 << 20 // memory from which the server sends
	floorHeader  = 24        // a C2HData header
	floorRequest = 72        // a CapsuleCmd
	floorBatch   = 64        // responses in one sendmsg
	serverBuffer = 256 << 10 // receive buffer of a server
	clientBuffer = 1 << 20
)

// floorShape is one request and its response, in bytes on the wire.
type floorShape struct{ Request, Response int }

// readFloor is the shape of reads of size bytes: a capsule and a C2HData PDU with data.
func readFloor(size int) floorShape { return floorShape{floorRequest, floorHeader + size} }

// writeFloor is the shape of in-capsule writes of size bytes: a capsule with data and a
// CapsuleResp.
func writeFloor(size int) floorShape { return floorShape{floorRequest + size, floorHeader} }

// after returns the index of the shape after i, computed without a division.
func after(i int, pattern []floorShape) int {
	if i++; i == len(pattern) {
		return 0
	}
	return i
}

// floorTraffic is the traffic of a floor. Each connection repeats the shapes of the pattern. The
// server gets the exported fields as JSON.
type floorTraffic struct {
	Pattern []floorShape
	Conns   int
	// Cold makes the server receive into consecutive places of its memory instead of one buffer.
	Cold bool
	// Events makes the server ask an epoll set for connections with requests.
	Events bool
	depth  int // requests in flight on each connection
	// latency measures the first connection of the client, nil if it is not measured.
	latency *floorLatency
}

// serveFloor accepts the connections of t on port and answers them until the client closes them. It
// pins its thread to cpu.
func serveFloor(port, cpu int, t floorTraffic) error {
	if err := pin(cpu); err != nil {
		return err
	}
	area, err := mem.Map("floor", floorArea)
	if err != nil {
		return err
	}
	defer func() { _ = area.Unmap() }()
	populate(area.Bytes())
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(listener) }()
	if err := errors.Join(unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(listener, loopback(port)), unix.Listen(listener, t.Conns)); err != nil {
		return err
	}
	servers := make([]*floorServer, t.Conns)
	in := make([]byte, serverBuffer)
	for i := range servers {
		fd, _, err := unix.Accept(listener)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := tune(fd); err != nil {
			return err
		}
		servers[i] = &floorServer{
			fd: fd, pattern: t.Pattern, memory: area.Bytes(),
			rng: rand.New(rand.NewPCG(1, uint64(i))), in: in, cold: t.Cold,
		}
	}
	next := func() []*floorServer { return servers }
	if t.Events {
		if next, err = floorEvents(servers); err != nil {
			return err
		}
	}
	for {
		for _, s := range next() {
			if e := s.poll(); hangup(e) {
				return nil
			} else if e != 0 {
				return e
			}
		}
	}
}

// floorEvents returns a function that returns the servers with events. The epoll set is closed when
// the process ends.
func floorEvents(servers []*floorServer) (func() []*floorServer, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	for i, s := range servers {
		ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(i)}
		if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, s.fd, &ev); err != nil {
			return nil, err
		}
	}
	events, ready := make([]unix.EpollEvent, len(servers)), make([]*floorServer, len(servers))
	return func() []*floorServer {
		n, _ := sys.EpollWait(epfd, events, 0)
		for i := range max(n, 0) {
			ready[i] = servers[events[i].Fd]
		}
		return ready[:max(n, 0)]
	}, nil
}

// populate writes to every page of b, so that it is mapped.
func populate(b []byte) {
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
}

// floorServer is one connection. It counts the bytes of requests and owes a response for each
// complete one.
type floorServer struct {
	fd      int
	pattern []floorShape
	memory  []byte
	rng     *rand.Rand
	in      []byte
	cold    bool
	at      int // in memory, if cold: destination of the next bytes
	header  [floorHeader]byte
	store   [2 * floorBatch]sys.Iovec
	queued  []sys.Iovec // the unsent rest of the last batch
	have    int         // bytes of an incomplete request
	request int         // index in pattern of the current request
	respond int         // index in pattern of the next response
	owe     int         // responses not queued yet
}

// poll receives once and sends the responses owed. An error ends the connection; ECONNRESET means
// that the client has closed it.
func (f *floorServer) poll() syscall.Errno {
	in := f.in
	if f.cold {
		if f.at+serverBuffer > len(f.memory) {
			f.at = 0
		}
		in = f.memory[f.at : f.at+serverBuffer]
	}
	n, e := sys.Recv(f.fd, in, 0)
	switch {
	case n == 0 && e == 0:
		return syscall.ECONNRESET
	case e != 0 && e != syscall.EAGAIN:
		return e
	}
	f.at += n
	for f.have += n; f.have >= f.pattern[f.request].Request; f.owe++ {
		f.have -= f.pattern[f.request].Request
		f.request = after(f.request, f.pattern)
	}
	for f.owe > 0 || len(f.queued) > 0 {
		if len(f.queued) == 0 {
			f.gather()
		}
		n, e := sys.Sendmsg(f.fd, f.queued, 0)
		if e == syscall.EAGAIN {
			break
		}
		if e != 0 {
			return e
		}
		if f.queued = sys.Advance(f.queued, n); len(f.queued) > 0 {
			break // the socket is full
		}
	}
	return 0
}

// hangup reports whether the client has closed the connection, possibly with responses outstanding.
func hangup(e syscall.Errno) bool { return e == syscall.EPIPE || e == syscall.ECONNRESET }

func (f *floorServer) gather() {
	f.queued = f.store[:0]
	for range min(f.owe, floorBatch) {
		var v sys.Iovec
		sys.SetIovec(&v, f.header[:])
		f.queued = append(f.queued, v)
		if data := f.pattern[f.respond].Response - floorHeader; data > 0 {
			off := f.rng.IntN((len(f.memory)-data)/4096) * 4096
			sys.SetIovec(&v, f.memory[off:off+data])
			f.queued = append(f.queued, v)
		}
		f.respond = after(f.respond, f.pattern)
		f.owe--
	}
}

// floorClient is the client of one connection.
type floorClient struct {
	fd      int
	pattern []floorShape
	out     []byte // at least as large as all requests in flight
	in      []byte
	unsent  int // bytes
	request int // index in pattern of the next request
	part    int // bytes of an incomplete response
	respond int // index in pattern of the current response
	done    uint64
	latency *floorLatency // nil if it is not measured
}

// next adds n requests to the unsent bytes.
func (c *floorClient) next(n int) {
	for range n {
		c.unsent += c.pattern[c.request].Request
		c.request = after(c.request, c.pattern)
	}
}

func (c *floorClient) poll() error {
	for c.unsent > 0 {
		n, e := sys.Send(c.fd, c.out[:min(c.unsent, len(c.out))], 0)
		if e == syscall.EAGAIN {
			break
		}
		if e != 0 {
			return fmt.Errorf("floor client: send: %w", e)
		}
		c.unsent -= n
	}
	n, e := sys.Recv(c.fd, c.in, 0)
	switch {
	case n == 0 && e == 0:
		return errors.New("floor client: the server closed the connection")
	case e != 0 && e != syscall.EAGAIN:
		return fmt.Errorf("floor client: receive: %w", e)
	}
	finished := 0
	for c.part += n; c.part >= c.pattern[c.respond].Response; finished++ {
		c.part -= c.pattern[c.respond].Response
		c.respond = after(c.respond, c.pattern)
	}
	c.done += uint64(finished)
	if c.latency != nil {
		c.latency.answered(finished)
	}
	c.next(finished)
	return nil
}

// loadFloor runs the traffic for d, but at least until the first response, and returns the number
// of requests answered per second.
func loadFloor(port, cpu int, t floorTraffic, d time.Duration) (float64, error) {
	if err := pin(cpu); err != nil {
		return 0, err
	}
	largest := 0
	for _, s := range t.Pattern {
		largest = max(largest, s.Request)
	}
	out, in := make([]byte, largest*t.depth), make([]byte, clientBuffer)
	clients := make([]*floorClient, t.Conns)
	for i := range clients {
		fd, err := dial(port)
		if err != nil {
			return 0, err
		}
		defer func() { _ = unix.Close(fd) }()
		c := &floorClient{fd: fd, pattern: t.Pattern, out: out, in: in}
		if i == 0 && t.latency != nil {
			c.latency = t.latency
			c.latency.begin()
		}
		c.next(t.depth)
		clients[i] = c
	}
	start := time.Now()
	deadline := start.Add(d)
	for i := 0; ; i++ {
		for _, c := range clients {
			if err := c.poll(); err != nil {
				return 0, err
			}
		}
		if (i&1023 != 0 && t.Conns == 1) || time.Now().Before(deadline) {
			continue
		}
		done := uint64(0)
		for _, c := range clients {
			done += c.done
		}
		if done > 0 {
			return float64(done) / time.Since(start).Seconds(), nil
		}
	}
}

func loopback(port int) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

// dial connects to a port of the loopback address. It waits up to half a minute for the listener,
// which populates its memory first.
func dial(port int) (int, error) {
	deadline := time.Now().Add(30 * time.Second)
	for {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return -1, err
		}
		if err = unix.Connect(fd, loopback(port)); err == nil {
			return fd, tune(fd)
		}
		_ = unix.Close(fd)
		if time.Now().After(deadline) {
			return -1, fmt.Errorf("connect to 127.0.0.1:%d: %w", port, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// congestion is the congestion control algorithm of all connections of a native run, on both sides.
// Every kernel has it and allows it without privileges. bbr, the default of some machines, paces
// some connections and not others, depending on their start.
const congestion = "reno"

func tune(fd int) error {
	return errors.Join(unix.SetNonblock(fd, true),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20))
}
