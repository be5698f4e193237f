// Package soft is RDMA without an RDMA device: RoCEv2 in this program, over ordinary UDP sockets.
// It needs no privileges and no kernel module. Adapters and the kernel's rdma_rxe connect to it
// unmodified.
//
//	verbs.CM, verbs.ID       soft/cm      connections: messages of the communication manager
//	verbs.QP                 soft/roce    reliable connections: requests, acknowledgments, retries
//	verbs.CQ, PD, MR, SRQ    soft/engine  queues and memory; one engine per completion vector
//	                         soft/wire    packets: headers, checksum, sockets
//
// RoCE has no authentication and no encryption: a sender that forges the addresses of a connection
// only has to guess its numbers. Queue pairs, keys, PSNs and communication IDs are
// random.
package soft

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/cm"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/roce"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// Options describe a provider.
type Options struct {
	// Network is the IP network; nil is that of the machine.
	Network wire.Network
	// Engines is the number of completion vectors; 0 means 1. A program with reactors has one for
	// each.
	Engines int
	// Background answers peers also while nobody polls a completion queue, with a goroutine per
	// engine.
	Background bool
	// CM has the times of the communication manager.
	CM cm.Options
}

// Provider is the verbs.Provider with one device, soft0. It opens its sockets when it is used for
// the first time, and keeps them until Close.
type Provider struct {
	opts Options

	mu     sync.Mutex
	closed bool
	dev    *device // nil if not open
	cm     *cm.Manager
}

// New makes a provider.
func New(o Options) *Provider { return &Provider{opts: o} }

// open opens the device if it is not. An error does not last: the next call tries again.
func (p *Provider) open() (*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, verbs.ErrClosed
	case p.dev != nil:
		return p.dev, nil
	}
	net := p.opts.Network
	if net == nil {
		net = wire.NewUDP(wire.UDPOptions{})
	}
	d, err := engine.New(net, engine.Options{
		Engines: p.opts.Engines, Background: p.opts.Background,
	})
	if err != nil {
		return nil, err
	}
	dev := &device{Device: d}
	m, err := cm.New(net, d.Manager(), dev, p.opts.CM)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("soft: communication manager: %w", err), d.Close())
	}
	p.dev, p.cm = dev, m
	return dev, nil
}

// Devices returns the device, or the error of opening its sockets.
func (p *Provider) Devices() ([]verbs.DeviceAttr, error) {
	d, err := p.open()
	if err != nil {
		return nil, err
	}
	return []verbs.DeviceAttr{d.Attr()}, nil
}

// NewCM opens a communication manager.
func (p *Provider) NewCM() (verbs.CM, error) {
	if _, err := p.open(); err != nil {
		return nil, err
	}
	return p.cm.NewCM()
}

// Close closes the sockets. Every object of the device and every communication manager has been
// destroyed. Peers of connections that ended just before may miss a message.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.dev == nil {
		return nil
	}
	err := errors.Join(p.cm.Close(), p.dev.Close())
	p.dev, p.cm = nil, nil
	return err
}

// device adds queue pairs to the engine's device.
type device struct {
	*engine.Device
	stats roce.Stats
	// failDestroy makes queue pairs stay, for tests.
	failDestroy atomic.Bool
}

func (d *device) NewQP(pd verbs.PD, init verbs.QPInit) (cm.QP, error) {
	p, ok := pd.(*engine.PD)
	if !ok {
		return nil, fmt.Errorf("create queue pair: protection domain of another device: %w",
			unix.EINVAL)
	}
	q, err := roce.New(d.Device, p, init, &d.stats)
	if err != nil {
		return nil, err
	}
	return queuePair{q, d}, nil
}

// queuePair makes a queue pair one of the communication manager.
type queuePair struct {
	*roce.QP
	dev *device
}

func (q queuePair) Connect(p cm.Peer) error { return q.QP.Connect(roce.Peer(p)) }

func (q queuePair) Destroy() error {
	if q.dev.failDestroy.Load() {
		return unix.EBUSY
	}
	return q.QP.Destroy()
}
