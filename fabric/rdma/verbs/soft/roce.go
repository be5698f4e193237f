package soft

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/cm"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/roce"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// roceDevice adds queue pairs and a communication manager to the engine's device.
type roceDevice struct {
	*engine.Device
	cm    *cm.Manager
	stats roce.Stats
}

func openRoCE(net wire.Network, p *Provider) (stack, error) {
	d, err := engine.New(net, engine.Options{
		Engines: p.opts.Engines, Background: p.opts.Background, Stuck: &p.stuck,
	})
	if err != nil {
		return nil, err
	}
	dev := &roceDevice{Device: d}
	if dev.cm, err = cm.New(net, d.Manager(), dev, p.opts.CM); err != nil {
		return nil, errors.Join(fmt.Errorf("soft: communication manager: %w", err), d.Close())
	}
	return dev, nil
}

func (d *roceDevice) NewCM() (verbs.CM, error) { return d.cm.NewCM() }

func (d *roceDevice) close() error { return errors.Join(d.cm.Close(), d.Device.Close()) }

func (d *roceDevice) NewQP(pd verbs.PD, init verbs.QPInit) (cm.QP, error) {
	return roce.New(pd, init, &d.stats)
}

func (d *roceDevice) count(add counters) {
	sum := func(name string, of func(*wire.Stats) *atomic.Uint64) {
		values := []*atomic.Uint64{of(d.Manager().Stats())}
		for i := range d.Attr().NumCompVectors {
			values = append(values, of(d.Engine(i).Conn().Stats()))
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
	q := &d.stats
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
	for i := range d.Attr().NumCompVectors {
		s := d.Engine(i).Stats()
		unknown = append(unknown, &s.Unparsed, &s.Unknown)
		handedOver, lost = append(handedOver, &s.HandedOver), append(lost, &s.HandOverLost)
	}
	add("unknown_qp_pkts", unknown...)
	add("handed_over_pkts", handedOver...)
	add("handed_over_lost", lost...)
	m := d.cm.Stats()
	add("cm_rcvd", &m.Received)
	add("cm_sent", &m.Sent)
	add("cm_invalid", &m.Invalid, &m.Strays)
	add("cm_repeated", &m.Repeated)
	add("cm_duplicates", &m.Duplicates)
	add("cm_refused", &m.Refused)
	add("cm_dropped", &m.Dropped)
}
