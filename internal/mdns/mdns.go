// Package mdns announces services on networks by multicast DNS (RFC 6762) and DNS-based service
// discovery (RFC 6763). It answers every query by multicast with all records of the interface on
// which the query arrived, at most once a second. So queries of strangers cost no more than that,
// and nothing is sent to an address that a stranger claims to have.
package mdns

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The multicast groups (RFC 6762, section 3).
var groups = map[string]*net.UDPAddr{
	"udp4": {IP: net.IPv4(224, 0, 0, 251), Port: 5353},
	"udp6": {IP: net.ParseIP("ff02::fb"), Port: 5353},
}

const (
	// pause is the shortest time between two messages of the same records (RFC 6762, section 6).
	pause = time.Second
	// perSecond is the number of packets per second that are processed for an interface.
	perSecond = 100
	maxPacket = 9000 // RFC 6762, section 17
	// maxServices is the number of services that are announced on an interface.
	maxServices = 64
	// announcements is the number of announcements of a change (RFC 6762, section 8.3).
	announcements = 2
	// writeLimit bounds the time of one round of writes to a socket.
	writeLimit = 100 * time.Millisecond
)

// Responder announces services. Any goroutine may call its methods.
type Responder struct {
	log   *slog.Logger
	pause time.Duration // tests wait less

	mu     sync.Mutex
	links  map[string]*link  // by interface
	failed map[string]string // by interface: the logged reason why services are not announced
}

// New makes a Responder that announces nothing yet.
func New(log *slog.Logger) *Responder {
	return &Responder{
		log: log, pause: pause, links: map[string]*link{}, failed: map[string]string{},
	}
}

// Set announces the services of interfaces and withdraws services announced before. Of too many
// services on an interface it announces the first ones, and logs that once. It also logs an
// interface that cannot be used; the next call tries it again.
func (r *Responder) Set(wanted map[string][]Service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	interfaces := map[string]net.Interface{}
	if len(wanted) > 0 {
		list, err := net.Interfaces()
		if err != nil {
			return // the next call tries again
		}
		for _, i := range list {
			interfaces[i.Name] = i
		}
	}
	for name, l := range r.links {
		if len(wanted[name]) == 0 || l.broken() || l.index != interfaces[name].Index {
			l.close()
			delete(r.links, name)
		}
	}
	failed := map[string]string{}
	for name, services := range wanted {
		if err := r.announce(name, services, interfaces[name]); err != nil {
			if failed[name] = err.Error(); r.failed[name] != failed[name] {
				r.log.Warn("services are not announced on an interface", "device", name, "err", err)
			}
		}
	}
	r.failed = failed
}

// announce announces the services of one interface. The caller holds r.mu.
func (r *Responder) announce(name string, services []Service, ifi net.Interface) (err error) {
	l := r.links[name]
	if l == nil && len(services) > 0 {
		if l, err = open(ifi.Index, r.pause); err != nil {
			return err
		}
		r.links[name] = l
	}
	if n := len(services); n > maxServices {
		err = fmt.Errorf("only the first %d of %d are announced", maxServices, n)
		services = services[:maxServices]
	}
	if l != nil {
		l.set(services)
		l.follow(ifi.Flags&net.FlagRunning != 0)
	}
	return err
}

// Close withdraws everything.
func (r *Responder) Close() { r.Set(nil) }

// link is one interface.
type link struct {
	index  int                           // of the interface; another may get its name
	conns  map[*net.UDPConn]*net.UDPAddr // and the group of each
	kick   chan struct{}                 // with room for one: there is something to send
	quit   chan struct{}
	pause  time.Duration
	ending sync.WaitGroup

	mu       sync.Mutex // held while sending, so that withdrawn services are not announced again
	services []Service
	names    map[string]bool // see questions
	announce int             // unsolicited announcements left
	down     bool            // no carrier at the last look
	err      error
}

var errNoInterface = errors.New("there is no such network interface")

// open joins the groups on an interface. One of IPv4 and IPv6 is enough.
func open(index int, pause time.Duration) (*link, error) {
	if index == 0 {
		return nil, errNoInterface
	}
	l := &link{
		index: index, conns: map[*net.UDPConn]*net.UDPAddr{}, kick: make(chan struct{}, 1),
		quit: make(chan struct{}), pause: pause,
	}
	var errs []error
	for network, group := range groups {
		conn, err := listen(network, index)
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

// listen makes a socket that sends to a group and receives packets for the group, on one interface.
// It is bound to the address of the group. If bound to all addresses, it would also receive packets
// for this machine from any network, and take them away from other programs on the port.
func listen(network string, index int) (*net.UDPConn, error) {
	family, join := unix.AF_INET, join4
	if network == "udp6" {
		family, join = unix.AF_INET6, join6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), network)
	defer func() { _ = f.Close() }()
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err = errors.Join(err, join(fd, index)); err != nil {
		return nil, err
	}
	conn, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// join4 joins the group of IPv4. Receivers can tell from the TTL that packets come from the link
// (RFC 6762, section 11). The socket receives nothing of groups that other sockets have joined.
func join4(fd, index int) error {
	at := &unix.SockaddrInet4{Port: groups["udp4"].Port}
	copy(at.Addr[:], groups["udp4"].IP.To4())
	member := &unix.IPMreqn{Multiaddr: at.Addr, Ifindex: int32(index)}
	return errors.Join(
		unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, member),
		unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, member),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 255),
		os.NewSyscallError("bind", unix.Bind(fd, at)))
}

// join6 does the same for IPv6.
func join6(fd, index int) error {
	at := &unix.SockaddrInet6{Port: groups["udp6"].Port, ZoneId: uint32(index)}
	copy(at.Addr[:], groups["udp6"].IP)
	member := &unix.IPv6Mreq{Multiaddr: at.Addr, Interface: uint32(index)}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
		unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, member),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
		os.NewSyscallError("bind", unix.Bind(fd, at)))
}

// set changes the services and withdraws removed ones at once.
func (l *link) set(services []Service) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reflect.DeepEqual(services, l.services) {
		return
	}
	l.write(messages(without(l.services, services), 0))
	l.services, l.names = services, questions(services)
	l.announce = announcements
	l.wake()
}

// follow announces the services again when the interface regains its carrier (RFC 6762, section 8):
// hosts may have forgotten them, and may not ask for an hour.
func (l *link) follow(running bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if running && l.down {
		l.announce = announcements
		l.wake()
	}
	l.down = !running
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

// write sends messages on all sockets. It ignores errors, such as a network that is down, because
// services are announced again later, and does not wait long for a socket that accepts nothing.
func (l *link) write(messages [][]byte) {
	for conn, group := range l.conns {
		_ = conn.SetWriteDeadline(time.Now().Add(writeLimit))
		for _, m := range messages {
			_, _ = conn.WriteToUDP(m, group)
		}
	}
}

// receive processes queries, at most perSecond in a second.
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
			services, names := l.services, l.names
			l.mu.Unlock()
			if asks(b[:n], services, names) {
				l.wake()
			}
		}
		if !l.wait(time.Second - time.Since(began)) {
			return
		}
	}
}

// wait sleeps for d. It returns false if the link is closed meanwhile.
func (l *link) wait(d time.Duration) bool {
	select {
	case <-l.quit:
		return false
	case <-time.After(d):
		return true
	}
}

// send sends all records shortly after a query (RFC 6762, section 6), at most once in a pause.
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
		again := l.tell()
		if !l.wait(l.pause) {
			return
		}
		if again {
			l.wake()
		}
	}
}

// tell sends all records, and reports whether it must do so again.
func (l *link) tell() (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write(messages(l.services, ttl))
	again = l.announce > 1
	l.announce = max(l.announce-1, 0)
	return again
}

// broken reports whether a socket can no longer receive.
func (l *link) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// close withdraws the services and ends the link.
func (l *link) close() {
	l.set(nil)
	close(l.quit)
	for conn := range l.conns {
		_ = conn.Close()
	}
	l.ending.Wait()
}
