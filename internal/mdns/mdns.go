// Package mdns announces services on networks by multicast DNS (RFC 6762) and DNS-based service
// discovery (RFC 6763). It answers every query with all records of the interface that the query
// came through, by multicast, at most once a second: what strangers ask costs no more than that,
// and nothing is sent to an address that a stranger claims to have.
package mdns

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The groups of RFC 6762, section 3.
var groups = map[string]*net.UDPAddr{
	"udp4": {IP: net.IPv4(224, 0, 0, 251), Port: 5353},
	"udp6": {IP: net.ParseIP("ff02::fb"), Port: 5353},
}

const (
	// pause is the least time between two messages of the same records (RFC 6762, section 6).
	pause = time.Second
	// perSecond is how many packets of an interface are looked at in a second.
	perSecond = 100
	maxPacket = 9000 // RFC 6762, section 17
)

// Responder announces services. Any goroutine may call its methods.
type Responder struct {
	log   *slog.Logger
	pause time.Duration // tests wait less

	mu     sync.Mutex
	links  map[string]*link  // by interface
	failed map[string]string // interfaces that cannot be used, and why, as it was logged
}

// New makes a Responder that announces nothing yet.
func New(log *slog.Logger) *Responder {
	return &Responder{
		log: log, pause: pause, links: map[string]*link{}, failed: map[string]string{},
	}
}

// Set announces the services of interfaces, and withdraws those that it has announced before. An
// interface that cannot be used is logged once, and tried again by the next call.
func (r *Responder) Set(wanted map[string][]Service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, l := range r.links {
		if len(wanted[name]) == 0 || l.broken() {
			l.close()
			delete(r.links, name)
		}
	}
	for name := range r.failed {
		if len(wanted[name]) == 0 {
			delete(r.failed, name)
		}
	}
	for name, services := range wanted {
		l := r.links[name]
		if l == nil && len(services) > 0 {
			var err error
			if l, err = open(name, r.pause); err != nil {
				if r.failed[name] != err.Error() {
					r.log.Warn("services are not announced on an interface", "device", name,
						"err", err)
				}
				r.failed[name] = err.Error()
				continue
			}
			delete(r.failed, name)
			r.links[name] = l
		}
		if l != nil {
			l.set(services)
		}
	}
}

// Close withdraws everything.
func (r *Responder) Close() { r.Set(nil) }

// link is one interface.
type link struct {
	conns  map[*net.UDPConn]*net.UDPAddr // and the group of each
	kick   chan struct{}                 // of one entry: there is something to send
	quit   chan struct{}
	pause  time.Duration
	ending sync.WaitGroup

	mu       sync.Mutex
	services []Service
	announce int // how often they are still announced without being asked for
	err      error
}

// open joins the groups on an interface. One of IPv4 and IPv6 is enough.
func open(name string, pause time.Duration) (*link, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	l := &link{
		conns: map[*net.UDPConn]*net.UDPAddr{}, kick: make(chan struct{}, 1),
		quit: make(chan struct{}), pause: pause,
	}
	var errs []error
	for network, group := range groups {
		conn, err := net.ListenMulticastUDP(network, ifi, group)
		if err == nil {
			if err = configure(conn, network); err != nil {
				_ = conn.Close()
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.conns[conn] = group
	}
	if len(l.conns) == 0 {
		return nil, errors.Join(errs...)
	}
	for conn := range l.conns {
		l.ending.Go(func() { l.receive(conn) })
	}
	l.ending.Go(l.send)
	return l, nil
}

// configure sees to it that a socket gets nothing of other interfaces, and that others can tell
// that what it sends comes from the link (RFC 6762, section 11).
func configure(conn *net.UDPConn, network string) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	set := func(fd int) error {
		if network == "udp4" {
			return errors.Join(
				unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0),
				unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 255))
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255))
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = set(int(fd)) })
	return errors.Join(err, failed)
}

// set changes the services. Those that are gone are withdrawn at once.
func (l *link) set(services []Service) {
	l.mu.Lock()
	if reflect.DeepEqual(services, l.services) {
		l.mu.Unlock()
		return
	}
	gone := without(l.services, services)
	l.services, l.announce = services, 2 // RFC 6762, section 8.3
	l.mu.Unlock()
	l.write(messages(gone, 0))
	l.wake()
}

// without returns the services of list that are not in other under the same name.
func without(list, other []Service) (rest []Service) {
	names := map[string]bool{}
	for i := range other {
		names[other[i].instanceName()] = true
	}
	for _, s := range list {
		if !names[s.instanceName()] {
			rest = append(rest, s)
		}
	}
	return rest
}

func (l *link) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// write sends messages by all sockets. That a network is down is no error: what is sent when it is
// up again is enough.
func (l *link) write(messages [][]byte) {
	for conn, group := range l.conns {
		for _, m := range messages {
			_, _ = conn.WriteToUDP(m, group)
		}
	}
}

// receive looks at queries, and not at more than perSecond.
func (l *link) receive(conn *net.UDPConn) {
	b := make([]byte, maxPacket)
	for {
		began := time.Now()
		for range perSecond {
			n, _, err := conn.ReadFromUDPAddrPort(b)
			if err != nil {
				l.mu.Lock()
				l.err = err
				l.mu.Unlock()
				return
			}
			l.mu.Lock()
			services := l.services
			l.mu.Unlock()
			if asks(b[:n], services) {
				l.wake()
			}
		}
		if !l.wait(time.Second - time.Since(began)) {
			return
		}
	}
}

// wait returns false if the link is closed meanwhile.
func (l *link) wait(d time.Duration) bool {
	select {
	case <-l.quit:
		return false
	case <-time.After(d):
		return true
	}
}

// send sends all records when a host has asked, after a short while (RFC 6762, section 6), and
// at most once in a pause.
func (l *link) send() {
	for {
		select {
		case <-l.quit:
			return
		case <-l.kick:
		}
		if !l.wait(time.Duration(20+rand.IntN(100)) * time.Millisecond) {
			return
		}
		l.mu.Lock()
		services, again := l.services, l.announce > 1
		l.announce = max(l.announce-1, 0)
		l.mu.Unlock()
		l.write(messages(services, ttl))
		if !l.wait(l.pause) {
			return
		}
		if again {
			l.wake()
		}
	}
}

// broken says whether a socket can receive nothing any more.
func (l *link) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// close withdraws the services and ends the link.
func (l *link) close() {
	l.write(messages(l.services, 0))
	close(l.quit)
	for conn := range l.conns {
		_ = conn.Close()
	}
	l.ending.Wait()
}
