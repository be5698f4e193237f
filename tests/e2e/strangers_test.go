package e2e

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// strangers are peers that are not allowed anywhere and take all the connections that they get.
type strangers struct {
	h    *env
	v    variant
	from func(i int) netip.Addr

	mu    sync.Mutex
	close []func()
}

// strangersFrom makes strangers with the address of the victim, or with other addresses.
func (h *env) strangersFrom(v variant, others bool) *strangers {
	s := &strangers{h: h, v: v}
	switch {
	case !others && v.isRDMA:
		s.from = func(int) netip.Addr { return netip.MustParseAddr("10.0.0.2") }
	case v.isRDMA:
		s.from = func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1, byte(i % 8)}) }
	case !others:
		s.from = func(int) netip.Addr { return netip.MustParseAddr("127.0.0.1") }
	default:
		s.from = func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 1, byte(i % 8)}) }
	}
	if v.isRDMA && others {
		var devices []verbstest.DeviceOptions
		for i := range 8 {
			devices = append(devices, verbstest.RoCE("dev"+string(rune('0'+i)), s.from(i)))
		}
		h.Fabric.AddHost("strangers", devices...)
		h.T.Cleanup(func() {
			testutil.Equal(h.T, h.Fabric.Live("strangers"), (verbstest.Counts{}),
				"RDMA objects of the strangers left")
		})
	}
	h.T.Cleanup(s.leave)
	return s
}

// transport connects from the address of stranger i.
func (s *strangers) transport(i int) host.Transport {
	switch t := s.h.transport(s.v).(type) {
	case host.TCP:
		t.Source = s.from(i)
		return t
	case host.RDMA:
		if t.Source = s.from(i); t.Source != netip.MustParseAddr("10.0.0.2") {
			t.Provider = s.h.Fabric.Provider("strangers")
		}
		return t
	}
	panic("another transport")
}

// keep makes leave call fn.
func (s *strangers) keep(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close = append(s.close, fn)
}

// leave ends the connections of the strangers.
func (s *strangers) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fn := range s.close {
		fn()
	}
	s.close = nil
}

// idle connects and sends nothing.
func (s *strangers) idle(i int) error {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: s.from(i).AsSlice()}}
	c, err := d.DialContext(testutil.Context(s.h.T), "tcp", s.h.Addr(nvme.TransportTCP).String())
	if err == nil {
		s.keep(func() { _ = c.Close() })
	}
	return err
}

// halfOpen connects on the transport level and sends no Connect command.
func (s *strangers) halfOpen(i int) error {
	q, err := host.DialQueue(testutil.Context(s.h.T), s.transport(i), uint16(i%2), 32, 1)
	if err == nil {
		s.keep(func() { _ = q.Close() })
	}
	return err
}

// refused sends a Connect command that is refused, and stays.
func (s *strangers) refused(i int) error {
	q, err := host.DialQueue(testutil.Context(s.h.T), s.transport(i), 0, 32, 0)
	if err == nil {
		o := s.v.hostOptions()
		o.HostNQN += "0"
		_, err = q.Do(testutil.Context(s.h.T), host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic))
		s.keep(func() { _ = q.Close() })
	}
	return err
}

// discovery creates a discovery controller.
func (s *strangers) discovery(i int) error {
	o := s.v.hostOptions()
	o.SubNQN, o.HostNQN, o.HostID = nvme.DiscoveryNQN, o.HostNQN[:40], [16]byte{1: byte(i)}
	c, err := host.Dial(testutil.Context(s.h.T), s.transport(i), o)
	if err == nil {
		s.keep(c.Close)
	}
	return err
}

// flood calls what for n strangers and returns the number of successes.
func (s *strangers) flood(n int, what func(i int) error) (taken int) {
	for i := range n {
		if what(i) == nil {
			taken++
		}
	}
	return taken
}

// usage returns the counts of the transport of the variant.
func (h *env) usage(v variant) fabric.Usage {
	return h.Server.Transport(h.transport(v).Type()).Usage()
}

// eachFlood runs fn on a harness with few connections for each transport, each kind of stranger,
// and with strangers at the address of the victim or at others.
func eachFlood(t *testing.T, fn func(t *testing.T, s *strangers, what func(i int) error)) {
	kinds := []struct {
		name    string
		tcpOnly bool
		what    func(s *strangers) func(i int) error
	}{
		{"idle", true, func(s *strangers) func(int) error { return s.idle }},
		{"half open", false, func(s *strangers) func(int) error { return s.halfOpen }},
		{"refused", false, func(s *strangers) func(int) error { return s.refused }},
		{"discovery", false, func(s *strangers) func(int) error { return s.discovery }},
	}
	for _, v := range plain {
		for _, k := range kinds {
			for from, others := range map[string]bool{"the same address": false, "others": true} {
				if k.tcpOnly && v.isRDMA {
					continue
				}
				t.Run(v.name+" "+k.name+" from "+from, func(t *testing.T) {
					h := newEnv(t, options{
						hosts: []string{hostNQN, hostNQN2},
						tcp: func(c *tcp.Config) {
							c.MaxConnections, c.LingerTimeout = 64, 50*time.Millisecond
						},
						rdma: func(c *rdma.Config) { c.MaxQueues = 64 },
					})
					s := h.strangersFrom(v, others)
					fn(t, s, k.what(s))
				})
			}
		}
	}
}

// TestStrangersFill: strangers take all the connections that they get and keep them. A connected
// host is unaffected, and another host repeatedly connects with eight queues at once, before and
// after more strangers have come.
func TestStrangersFill(t *testing.T) {
	t.Parallel()
	eachFlood(t, func(t *testing.T, s *strangers, what func(i int) error) {
		h := s.h
		a := newAttacker(h, s.v) // only its bystander is of interest
		a.c.Close()
		if n := s.flood(100, what); n < 16 {
			t.Fatalf("%d strangers have connected: nothing is tested", n)
		}
		for round := range rounds(2, 3) {
			c, err := host.Connect(testutil.Context(t), h.transport(s.v), s.v.hostOptions())
			testutil.MustTrue(t, err == nil, "round %d: %v\n%s", round, err, h.Log)
			var queues []*host.Queue
			for qid := range uint16(8) {
				q, err := c.OpenQueue(testutil.Context(t), qid+1, 32)
				testutil.MustTrue(t, err == nil, "round %d, queue %d: %v\n%s", round, qid+1, err,
					h.Log)
				h.Must(hosttest.Flush(testutil.Context(t), q, 1))
				queues = append(queues, q)
			}
			s.flood(20, what)
			h.Ping(c)
			for _, q := range queues {
				h.Must(hosttest.Flush(testutil.Context(t), q, 1))
				h.Must(q.Close())
			}
			c.Close()
			a.checkBystander(t)
		}
		s.leave()
		h.Until("only the bystander is left", func() bool {
			u := h.usage(s.v)
			return u.Connections == 2 && u.Unassociated == 0 && u.Discovery == 0 &&
				len(h.Target.Controllers()) == 1
		})
	})
}

// TestStrangersKeepComing: a known host repeatedly connects while strangers flood the target
// without a pause. It succeeds at the first attempt if they have other addresses. If they have its
// own address, it may need more, since a flood may be faster than a handshake.
func TestStrangersKeepComing(t *testing.T) {
	t.Parallel()
	eachFlood(t, func(t *testing.T, s *strangers, what func(i int) error) {
		h := s.h
		attempt := func() error {
			c, err := host.Connect(testutil.Context(t), h.transport(s.v), s.v.hostOptions())
			if err != nil {
				return err
			}
			defer c.Close()
			q, err := c.OpenQueue(testutil.Context(t), 1, 32)
			if err != nil {
				return err
			}
			return errors.Join(hosttest.Flush(testutil.Context(t), q, 1), q.Close())
		}
		h.Must(attempt())
		s.flood(100, what)
		var stop atomic.Bool
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop.Store(true)
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				_ = what(i)
				if i%100 == 99 {
					s.leave()
				}
			}
		})
		for i := range rounds(5, 20) {
			err := attempt()
			if err != nil && s.from(0) == s.from(1) {
				h.Until("the host connects", func() bool { err = attempt(); return err == nil })
			}
			testutil.MustTrue(t, err == nil, "round %d: %v\n%s", i, err, h.Log)
		}
	})
}
