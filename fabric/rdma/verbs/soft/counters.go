package soft

import (
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// Counters returns the counters of the device since its sockets are open, none before. Counters
// that drivers of adapters have, too, have their names. Any goroutine may call it.
func (p *Provider) Counters() []observed.PortCounter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dev == nil {
		return nil
	}
	var list []observed.PortCounter
	add := func(name string, values ...*atomic.Uint64) {
		c := observed.PortCounter{Device: p.dev.Attr().Name, Port: "1", Counter: name}
		for _, v := range values {
			c.Value += v.Load()
		}
		list = append(list, c)
	}
	sum := func(name string, of func(*wire.Stats) *atomic.Uint64) {
		values := []*atomic.Uint64{of(p.dev.Manager().Stats())}
		for i := range p.dev.Attr().NumCompVectors {
			values = append(values, of(p.dev.Engine(i).Conn().Stats()))
		}
		add(name, values...)
	}
	sum("sent_pkts", func(s *wire.Stats) *atomic.Uint64 { return &s.Sent })
	sum("rcvd_pkts", func(s *wire.Stats) *atomic.Uint64 { return &s.Received })
	sum("dropped_pkts", func(s *wire.Stats) *atomic.Uint64 { return &s.Dropped })
	sum("rcv_overflows", func(s *wire.Stats) *atomic.Uint64 { return &s.Overflows })
	sum("rcvd_icrc_errors", func(s *wire.Stats) *atomic.Uint64 { return &s.BadICRC })
	sum("rcvd_malformed", func(s *wire.Stats) *atomic.Uint64 { return &s.Malformed })
	sum("blocked_sends", func(s *wire.Stats) *atomic.Uint64 { return &s.Blocked })
	q := &p.dev.stats
	add("retransmissions", &q.Retransmissions)
	add("local_ack_timeout_err", &q.Timeouts)
	add("out_of_seq_request", &q.OutOfOrder)
	add("duplicate_request", &q.Duplicates)
	add("send_rnr_err", &q.RNRSent)
	add("rcvd_rnr_err", &q.RNRReceived)
	add("np_cnp_sent", &q.CNPSent)
	add("rp_cnp_handled", &q.CNPReceived)
	add("ignored_pkts", &q.Ignored)
	add("unsegmented_paths", &q.Unsegmented)
	var unknown, handedOver, lost []*atomic.Uint64
	for i := range p.dev.Attr().NumCompVectors {
		s := p.dev.Engine(i).Stats()
		unknown = append(unknown, &s.Unparsed, &s.Unknown)
		handedOver, lost = append(handedOver, &s.HandedOver), append(lost, &s.HandOverLost)
	}
	add("unknown_qp_pkts", unknown...)
	add("handed_over_pkts", handedOver...)
	add("handed_over_lost", lost...)
	m := p.cm.Stats()
	add("cm_rcvd", &m.Received)
	add("cm_sent", &m.Sent)
	add("cm_invalid", &m.Invalid, &m.Strays)
	add("cm_repeated", &m.Repeated)
	add("cm_duplicates", &m.Duplicates)
	add("cm_refused", &m.Refused)
	add("cm_dropped", &m.Dropped)
	return list
}
