package rdma

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Missing settings get their defaults, and others stay unchanged.
func TestDefaults(t *testing.T) {
	c := Config{InCapsuleSize: -1, MaxQueues: 7}
	c.SetDefaults()
	testutil.True(t, c.MaxDepth == DefaultDepth && c.QueueMemory == DefaultQueueMemory &&
		c.SRQSize == 0 && c.DrainTimeout == DefaultDrainTimeout && c.InCapsuleSize == 0 &&
		c.MaxQueues == 7, "%+v", c)
	c = Config{SRQSize: 129}
	c.SetDefaults()
	testutil.True(t, c.SRQSize == 2*srqSlabSlots && c.InCapsuleSize == DefaultInCapsule, "%+v", c)
}

// A connection that is closed instead of adopted is refused. Adopting it afterwards fails.
func TestConnClosed(t *testing.T) {
	b := newHarness(t, harnessOptions{})
	result := make(chan error, 2)
	l := testutil.Value(b.tr.Listen(fabric.Addr{
		Transport: nvme.TransportRDMA,
		AddrPort:  netipWithPort(b.addr(), 0),
	}, 3, func(c fabric.Conn) {
		testutil.Equal(t, c.Info().PortID, 3, "port")
		result <- c.Close()
		result <- b.g.Adopt(c)
	}))(t)
	testutil.Equal(t, b.host.rejected(l.Addr().AddrPort, ioParam(8)), cmwire.NoResources, "")
	testutil.Check(t, <-result)
	testutil.Is(t, <-result, errClaimed, "adopted after Close")
	b.idle()
}

// BenchmarkPoll makes 32 reads of 4 KiB, from capsule to response, on the fake fabric, which takes
// most of the time.
func BenchmarkPoll(b *testing.B) {
	for name, shared := range map[string]int{"own receives": 0, "shared receives": srqSlabSlots} {
		b.Run(name, func(b *testing.B) {
			m := newManual(b, verbstest.Options{},
				Config{Log: slog.New(slog.DiscardHandler), SRQSize: shared}, ioParam(32))
			sqes := make([]nvme.SQE, 32)
			for i := range sqes {
				sqes[i] = m.host.keyed(command(opRead, uint16(i), 0, 4096), i*4096, 4096)
			}
			m.ioRound(sqes)
			b.ReportAllocs()
			for b.Loop() {
				m.ioRound(sqes)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(sqes)),
				"ns/command")
		})
	}
}

// Each listener has its own type of service.
func TestListenerTOS(t *testing.T) {
	tos := func(portID uint16) uint8 {
		if portID == 3 {
			return 104
		}
		return 0
	}
	b := newHarness(t, harnessOptions{cfg: Config{TOS: tos}})
	for port, want := range map[uint16]uint8{3: 104, 4: 0} {
		l := testutil.Value(b.tr.Listen(fabric.Addr{
			Transport: nvme.TransportRDMA,
			AddrPort:  netipWithPort(b.addr(), 0),
		}, port, b.adopt))(t)
		testutil.Equal(t, l.(*listener).id.(interface{ TOS() uint8 }).TOS(), want, "port %d", port)
		testutil.Check(t, l.Close())
	}
}

// Queues that do not fit into the memory are refused. Queues that leave make room.
func TestQueueMemory(t *testing.T) {
	b := newHarness(t, harnessOptions{cfg: Config{QueueMemory: 1 << 20}})
	two := ioParam(100) // 408 KiB each, and 24 with Connect
	q := b.host.associate(b.addr(), two)
	b.host.associate(b.addr(), two)
	testutil.Equal(t, b.host.rejected(b.addr(), two), cmwire.NoResources, "")
	testutil.True(t, strings.Contains(b.log.String(),
		"2 queues have 864 KiB of memory and this one wants 408, the limit is 1024"), "log:\n%s",
		b.log)
	b.host.associate(b.addr(), adminParam()) // 2.5 KiB
	q.disconnect()
	b.host.event(verbs.EventDisconnected)
	testutil.Until(t, "two connections", func() bool { return b.tr.Usage().Connections == 2 })
	testutil.Equal(t, b.host.connect(b.addr(), two).do(command(opNothing, 1, 0, 0), nil),
		nvme.Success, "")
}
