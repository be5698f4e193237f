package e2e

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/cm"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// softTarget is a target without an RDMA device, on a network in memory, and the stack of a host.
type softTarget struct {
	*Env
	net      *wiretest.Network
	provider *soft.Provider // of the host
}

// newSoft starts a target on a network with these faults.
func newSoft(t *testing.T, faults wiretest.Options) *softTarget {
	t.Helper()
	s := &softTarget{net: wiretest.New(faults)}
	// A busy machine may suspend the test for seconds: nobody gives up within four.
	times := cm.Options{ResponseTimeout: 16, AckTimeout: 17}
	machine := func(name, addr string, engines int, background bool) *soft.Provider {
		p := soft.New(soft.Options{
			Network: s.net.Host(name, netip.MustParseAddr(addr)), Engines: engines,
			Background: background, CM: times,
		})
		t.Cleanup(func() { testutil.Check(t, p.Close()) })
		return p
	}
	const reactors = 2
	s.provider = machine("host", "10.0.0.2", 2, true)
	s.Env = New(t, Options{
		Reactors: reactors, QueueDepth: 64, Soft: machine("target", "10.0.0.1", reactors, false),
	})
	return s
}

func (s *softTarget) connect() *host.Controller {
	s.T.Helper()
	return s.Connect(host.RDMA{Provider: s.provider, Addr: s.Addr(nvme.TransportRDMA)},
		Variant{}.HostOptions())
}

// TestSoft has no RDMA device at either end. A host connects several times, and verifies random
// data on several queues while the network loses, doubles and reorders packets.
func TestSoft(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]wiretest.Options{
		"no faults": {},
		"1 % loss":  {Loss: 0.01, Duplicate: 0.01, Reorder: 0.01},
		"small MTU": {Loss: 0.01, MTU: 1500},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSoft(t, faults)
			s.sessions()
			// Without loss, too, if an acknowledgment is late.
			repeated := slices.ContainsFunc(s.provider.Counters(),
				func(c observed.PortCounter) bool {
					return c.Counter == "retransmissions" && c.Value > 0
				})
			testutil.True(t, repeated || faults.Loss == 0, "the host has not repeated packets")
		})
	}
}

// sessions has a host connect twice and verify random data on several queues.
func (s *softTarget) sessions() {
	t := s.T
	t.Helper()
	for session := range 2 {
		c := s.connect()
		var wg sync.WaitGroup
		var queues []*host.Queue
		for i := range 4 {
			q := testutil.Value(c.OpenQueue(testutil.Context(t), uint16(i+1), 17+i*4))(t)
			queues = append(queues, q)
			buf := s.Buffer(c, q.Depth()*32768)
			wg.Go(func() {
				testutil.Equal(t, verify(q, uint64(i)*16384, buf, testutil.Rounds(2, 40)), nil,
					"session %d, queue %d", session, i+1)
			})
		}
		wg.Wait()
		for _, q := range queues {
			testutil.Equal(t, q.Close(), nil, "close")
		}
		c.Close()
	}
}

// TestSoftIWARP is TestSoft with iWARP, over TCP sockets of this machine.
func TestSoftIWARP(t *testing.T) {
	t.Parallel()
	const reactors = 2
	machine := func(background bool) *soft.Provider {
		p := soft.New(soft.Options{
			IWARP: true, Engines: reactors, Background: background, MPA: mpa.Options{CRC: true},
		})
		t.Cleanup(func() { testutil.Check(t, p.Close()) })
		return p
	}
	s := &softTarget{provider: machine(true)}
	s.Env = New(t, Options{Reactors: reactors, QueueDepth: 64, SoftIWARP: machine(false)})
	s.sessions()
	for _, c := range s.provider.Counters() {
		switch c.Counter {
		case "rcvd_fpdus":
			testutil.True(t, c.Value > 0, "nothing came over iWARP")
		case "rcvd_crc_errors", "sent_terminates", "rcvd_terminates":
			testutil.Equal(t, c.Value, 0, "%s", c.Counter)
		}
	}
}

// TestSoftReconnect: the host notices that the network is gone, says so when it is back, and
// connects again. The data is that of the lost connection.
func TestSoftReconnect(t *testing.T) {
	t.Parallel()
	s := newSoft(t, wiretest.Options{})
	const size = 64 << 10
	var want [size]byte
	pattern(want[:], 1)
	for round := range 2 {
		c := s.connect()
		q := testutil.Value(c.OpenQueue(testutil.Context(t), 1, 32))(t)
		buf := s.Buffer(c, size)
		if round == 1 {
			s.Must(hosttest.Read(testutil.Context(t), q, 1, 8, size/512, buf))
			testutil.MustEqual(t, Differ(buf, want[:]), "", "data of the lost connection")
			testutil.Equal(t, q.Close(), nil, "close")
			break
		}
		copy(buf, want[:])
		s.Must(hosttest.Write(testutil.Context(t), q, 1, 8, size/512, buf, 0))
		s.net.SetFaults(wiretest.Options{Loss: 1})
		testutil.True(t, hosttest.Read(testutil.Context(t), q, 1, 8, size/512, buf) != nil,
			"a command completes without a network")
		_ = q.Close()
		c.Close()
		s.net.SetFaults(wiretest.Options{})
		s.Until("the host has left", func() bool {
			return s.Server.Transport(nvme.TransportRDMA).Usage().Connections == 0
		})
	}
}
