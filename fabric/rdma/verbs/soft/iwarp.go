package soft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/iwarp"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// iwarpDevice adds queue pairs and a connection manager to the engine's device.
type iwarpDevice struct {
	*engine.Device
	net      *iwarp.Network
	cm       *mpa.Manager
	stats    iwarp.Stats
	provider *Provider
}

func openIWARP(net wire.Network, p *Provider) (stack, error) {
	w := iwarp.NewNetwork(net)
	d, err := engine.New(w, engine.Options{
		Name: "softiw0", Engines: p.opts.Engines, Background: p.opts.Background,
	})
	if err != nil {
		return nil, err
	}
	dev := &iwarpDevice{Device: d, net: w, provider: p}
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
	p, ok := pd.(*engine.PD)
	if !ok {
		return nil, fmt.Errorf("create queue pair: protection domain of another device: %w",
			unix.EINVAL)
	}
	q, err := iwarp.New(d.net, p, init, &d.stats)
	if err != nil {
		return nil, err
	}
	return iwarpQP{q, d}, nil
}

// iwarpQP is a queue pair. Its Destroy fails if a test wants that.
type iwarpQP struct {
	*iwarp.QP
	dev *iwarpDevice
}

func (q iwarpQP) Destroy() error {
	if q.dev.provider.failDestroy.Load() {
		return unix.EBUSY
	}
	return q.QP.Destroy()
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
