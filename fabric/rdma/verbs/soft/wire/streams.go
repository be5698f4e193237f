package wire

import (
	"time"

	"golang.org/x/sys/unix"
)

// Streams is the Conn of an engine without packets: each endpoint has a TCP socket of its own, and
// Streams tells it when the socket is ready.
type Streams struct {
	*descriptor
	start   time.Time
	stats   Stats
	sockets map[int32]StreamSocket
}

// A StreamSocket gets the events of its socket (epoll_ctl(2)), within Recv. An event comes once, as
// with EPOLLET: the socket stays ready until a call has moved fewer bytes than it was asked to.
type StreamSocket interface{ Ready(events uint32) }

// NewStreams makes a Conn without sockets.
func NewStreams() (*Streams, error) {
	s := &Streams{start: time.Now(), sockets: make(map[int32]StreamSocket)}
	var err error
	s.descriptor, err = openDescriptor(s.Now)
	return s, err
}

// Add begins to watch a socket. The engine is held.
func (s *Streams) Add(fd int, to StreamSocket) error {
	err := s.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET)
	if err == nil {
		s.sockets[int32(fd)] = to
	}
	return err
}

// Remove ends the watching of a socket. The engine is held.
func (s *Streams) Remove(fd int) {
	delete(s.sockets, int32(fd))
	_ = s.watch(unix.EPOLL_CTL_DEL, fd, 0) // cannot fail after Add
}

// Recv is Conn.Recv. It returns no packets.
func (s *Streams) Recv() ([]Packet, error) {
	s.more = true
	for n := 0; n < MaxBatch && s.more; n += len(s.events) {
		list := s.ready()
		for i := range list {
			if to := s.sockets[list[i].Fd]; to != nil {
				to.Ready(list[i].Events)
			}
		}
		s.more = len(list) == len(s.events)
	}
	return nil, nil
}

func (s *Streams) Now() time.Duration { return time.Since(s.start) }

func (s *Streams) SetTimer(at time.Duration) { s.setTimer(at) }

func (s *Streams) Stats() *Stats { return &s.stats }

// Close is Conn.Close. No socket is watched.
func (s *Streams) Close() error {
	s.close()
	return nil
}

// Alloc, Flush and ReceiveBuffer have no meaning without packets.
func (s *Streams) Alloc(*Path, int) []byte { return nil }
func (s *Streams) Flush()                  {}
func (s *Streams) ReceiveBuffer() int      { return 0 }

var _ Conn = (*Streams)(nil)
