package soft

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/iwarp"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// iwarpDevice adds queue pairs and a connection manager to the engine's device.
type iwarpDevice struct {
	*engine.Device
	net   *iwarp.Network
	cm    *mpa.Manager
	stats iwarp.Stats
}

func openIWARP(net wire.Network, p *Provider) (stack, error) {
	w := iwarp.NewNetwork(net)
	d, err := engine.New(w, engine.Options{
		Name: "softiw0", Engines: p.opts.Engines, Background: p.opts.Background,
		Stuck: &p.stuck,
	})
	if err != nil {
		return nil, err
	}
	dev := &iwarpDevice{Device: d, net: w}
	o := p.opts.MPA
	o.Log = p.opts.Log
	dev.cm = mpa.New(net, dev, o)
	return dev, nil
}

// Attr describes the device. It has no shared receive queues, because a message that finds no
// receive ends its connection.
func (d *iwarpDevice) Attr() verbs.DeviceAttr {
	a := d.Device.Attr()
	a.IWARP, a.MaxSRQ = true, 0
	return a
}

func (d *iwarpDevice) NewCM() (verbs.CM, error) { return d.cm.NewCM() }

func (d *iwarpDevice) close() error { return errors.Join(d.cm.Close(), d.Device.Close()) }

func (d *iwarpDevice) NewQP(pd verbs.PD, init verbs.QPInit) (mpa.QP, error) {
	return iwarp.New(d.net, pd, init, &d.stats)
}

func (d *iwarpDevice) count(add counters) {
	q, m := &d.stats, d.cm.Stats()
	add("sent_fpdus", &q.SentFPDUs)
	add("rcvd_fpdus", &q.ReceivedFPDUs)
	add("sent_terminates", &q.SentTerminates)
	add("rcvd_terminates", &q.ReceivedTerminates)
	add("rcvd_crc_errors", &q.BadCRC)
	add("blocked_sends", &q.Blocked)
	add("cm_accepted", &m.Accepted)
	add("cm_rcvd", &m.Requests)
	add("cm_invalid", &m.Invalid)
	add("cm_refused", &m.Refused)
	add("cm_dropped", &m.Dropped)
	add("cm_accept_errors", &m.AcceptErrors)
}
