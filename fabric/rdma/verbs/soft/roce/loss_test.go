package roce

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// TestLoss has 32 transfers of 128 KiB at once, and loses one packet in a hundred, or one send of
// up to 16 packets. Nearly all losses are noticed by a packet behind them and not by a timer, and
// few packets are sent twice.
func TestLoss(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     verbs.SendOpcode
		shared int // packets of a send
		// Bounds, in percent of the losses noticed and of the packets needed.
		timeouts, packets int
	}{
		{"READ, packets", verbs.WRRDMARead, 1, 4, 115},
		{"READ, sends", verbs.WRRDMARead, 16, 6, 105},
		{"WRITE, packets", verbs.WRRDMAWrite, 1, 4, 115},
		{"WRITE, sends", verbs.WRRDMAWrite, 16, 6, 105},
	} {
		t.Run(c.name, func(t *testing.T) {
			const transfers, size, mtu = 1000, 128 << 10, 4096
			p := newPair(t, options{mtu: mtu, reads: 16, send: 32})
			p.mem.SetFaults(wiretest.Options{
				Delay: 30 * time.Microsecond, Filter: lossOfSends(p, c.shared),
			})
			posted, done := 0, 0
			for done < transfers {
				for ; posted < transfers && posted-done < 32; posted++ {
					p.a.rdma(1, c.op, 0, size, p.b.at(0), p.b.mr.RKey())
				}
				for range maxWaits + 1 { // without a pause, as long as an ACK may wait
					p.a.poll()
					p.b.poll()
				}
				n := len(p.a.take())
				if done += n; n == 0 {
					p.turn()
				}
			}
			noticed, timeouts := p.a.st.Retransmissions.Load(), p.a.st.Timeouts.Load()
			sent := p.a.qp.Eng.Conn().Stats().Sent.Load()
			if c.op == verbs.WRRDMARead {
				sent = p.b.qp.Eng.Conn().Stats().Sent.Load()
			}
			const needed = transfers * size / mtu
			t.Logf("%d losses noticed, %d by a timer; %d packets for %d in %v", noticed,
				timeouts, sent, needed, p.now())
			if noticed < 20 || int(timeouts)*100 > int(noticed)*c.timeouts ||
				int(sent)*100 > needed*c.packets {
				t.Errorf("of %d losses %d were noticed by a timer, and %d packets were sent for %d",
					noticed, timeouts, sent, needed)
			}
		})
	}
}

// lossOfSends loses one send in a hundred, with its packets.
func lossOfSends(p *pair, packets int) func(*wire.Packet) bool {
	rnd := rand.New(rand.NewPCG(1, 1))
	var sends [2]struct {
		at   time.Duration
		n    int
		lost bool
	}
	return func(pk *wire.Packet) bool {
		var h packet.Header
		s := &sends[0]
		if pk.Local.Addr() == p.b.addr {
			s = &sends[1]
		}
		now := p.a.qp.Eng.Now()
		if s.n++; now != s.at || s.n >= packets || h.Parse(pk.Data) && len(h.Payload) == 0 {
			s.at, s.n, s.lost = now, 0, rnd.IntN(100) == 0
		}
		return !s.lost
	}
}
