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

// The floor is what loopback TCP allows for traffic of NVMe/TCP's shape with no NVMe in it: a client keeps a number of small
// requests in flight, a server answers each with one response gathered from a large memory area. Both sides poll.

const (
	floorArea    = 256 << 20 // server memory that responses come from
	floorHeader  = 24        // a C2HData header
	floorRequest = 72        // a CapsuleCmd
	floorBatch   = 64        // responses in one writev
)

// floorShape is the traffic of one floor run: bytes of a request and of a response on the wire.
type floorShape struct{ request, response int }

// readFloor is the shape of reads of size bytes: a capsule against a C2HData PDU with its data.
func readFloor(size int) floorShape { return floorShape{floorRequest, floorHeader + size} }

// writeFloor is the shape of in-capsule writes of size bytes: a capsule with data against a CapsuleResp.
func writeFloor(size int) floorShape { return floorShape{floorRequest + size, floorHeader} }

// serveFloor answers one connection on port until the client closes it. It pins its thread to cpu.
func serveFloor(port, cpu int, s floorShape) error {
	if err := pin(cpu); err != nil {
		return err
	}
	area, err := mem.Map("floor", floorArea)
	if err != nil {
		return err
	}
	memory := area.Bytes()
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(listener) }()
	if err := errors.Join(unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(listener, loopback(port)), unix.Listen(listener, 1)); err != nil {
		return err
	}
	fd, _, err := unix.Accept(listener)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := tune(fd); err != nil {
		return err
	}
	return newFloorServer(fd, s, memory).run()
}

// floorServer counts requests in bytes and owes a response for each complete one.
type floorServer struct {
	fd     int
	shape  floorShape
	memory []byte
	rng    *rand.Rand
	in     []byte
	header [floorHeader]byte
	store  [2 * floorBatch]sys.Iovec
	queued []sys.Iovec // the unsent rest of the last batch
	have   int         // bytes of an incomplete request
	owe    int         // responses not queued yet
}

func newFloorServer(fd int, s floorShape, memory []byte) *floorServer {
	return &floorServer{fd: fd, shape: s, memory: memory, rng: rand.New(rand.NewPCG(1, 2)), in: make([]byte, 1<<20)}
}

func (f *floorServer) run() error {
	for {
		n, e := sys.Recv(f.fd, f.in, 0)
		if hangup(e) || n == 0 && e == 0 {
			return nil
		}
		if e != 0 && e != syscall.EAGAIN {
			return e
		}
		f.have += n
		f.owe += f.have / f.shape.request
		f.have %= f.shape.request
		if e := f.flush(); hangup(e) {
			return nil
		} else if e != 0 && e != syscall.EAGAIN {
			return e
		}
	}
}

// hangup says that the client has closed with responses on the way.
func hangup(e syscall.Errno) bool { return e == syscall.EPIPE || e == syscall.ECONNRESET }

func (f *floorServer) flush() syscall.Errno {
	for f.owe > 0 || len(f.queued) > 0 {
		if len(f.queued) == 0 {
			f.gather()
		}
		n, e := sys.Sendmsg(f.fd, f.queued, 0)
		if e != 0 {
			return e
		}
		f.queued = sys.Advance(f.queued, n)
	}
	return 0
}

func (f *floorServer) gather() {
	f.queued = f.store[:0]
	for range min(f.owe, floorBatch) {
		var v sys.Iovec
		sys.SetIovec(&v, f.header[:min(floorHeader, f.shape.response)])
		f.queued = append(f.queued, v)
		if data := f.shape.response - floorHeader; data > 0 {
			off := f.rng.IntN((len(f.memory)-data)/4096) * 4096
			sys.SetIovec(&v, f.memory[off:off+data])
			f.queued = append(f.queued, v)
		}
		f.owe--
	}
}

// loadFloor keeps depth requests in flight for d and measures like loadTarget does.
func loadFloor(port, cpu, depth int, s floorShape, d time.Duration) (result, error) {
	if err := pin(cpu); err != nil {
		return result{}, err
	}
	fd, err := dial(port)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	out := make([]byte, depth*s.request)
	in := make([]byte, 1<<20)
	toSend, sent, part, done := depth, 0, 0, 0
	start := time.Now()
	deadline := start.Add(d)
	for i := 0; ; i++ {
		for toSend > 0 {
			n, e := sys.Send(fd, out[:toSend*s.request-sent], 0)
			if e == syscall.EAGAIN {
				break
			}
			if e != 0 {
				return result{}, fmt.Errorf("floor client: send: %w", e)
			}
			sent += n
			toSend -= sent / s.request
			sent %= s.request
		}
		n, e := sys.Recv(fd, in, 0)
		if e != 0 && e != syscall.EAGAIN {
			return result{}, fmt.Errorf("floor client: recv: %w", e)
		}
		part += n
		done += part / s.response
		toSend += part / s.response
		part %= s.response
		if i&1023 == 0 && time.Now().After(deadline) {
			break
		}
	}
	return result{ops: uint64(done), elapsed: time.Since(start)}, nil
}

func loopback(port int) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

// dial connects to a port of the loopback address, waiting up to five seconds for the listener.
func dial(port int) (int, error) {
	deadline := time.Now().Add(5 * time.Second)
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

func tune(fd int) error {
	return errors.Join(unix.SetNonblock(fd, true),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20))
}
