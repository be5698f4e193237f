// Package soft implements RDMA without an RDMA device: RoCEv2 over ordinary UDP sockets, and iWARP
// over ordinary TCP sockets. It needs no privileges and no kernel module. Adapters and the kernel's
// rdma_rxe and siw connect to it unmodified.
//
//	                         RoCEv2       iWARP
//	verbs.CM, verbs.ID       soft/cm      soft/mpa    connections; soft/ids is the common part
//	verbs.QP                 soft/roce    soft/iwarp  queue pairs: messages, and their ends
//	verbs.CQ, PD, MR, SRQ    soft/engine              queues and memory; one engine per
//	                                                  completion vector
//	                         soft/packet              headers and checksum of RoCEv2
//	                         soft/wire                sockets
//
// RoCE has no authentication and no encryption: a sender that forges the addresses of a connection
// only has to guess its numbers. Therefore, QP numbers, keys, PSNs and communication IDs are
// random.
package soft

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/cm"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// Options describe a provider.
type Options struct {
	// Network is the IP network; nil is that of the machine.
	Network wire.Network
	// Sockets keeps sockets of that network for the next process; see TakeRequests.
	Sockets wire.Sockets
	// Engines is the number of completion vectors; 0 means 1. A program with reactors has one for
	// each.
	Engines int
	// Background answers peers also while nobody polls a completion queue, with a goroutine per
	// engine.
	Background bool
	// CM has the times of the communication manager.
	CM cm.Options
	// IWARP chooses iWARP instead of RoCEv2, and MPA has its times.
	IWARP bool
	MPA   mpa.Options
	// Log gets errors of iWARP listeners. Default: none.
	Log *slog.Logger
}

// Provider is the verbs.Provider with one device: soft0, or softiw0 for iWARP. It opens its sockets
// when it is used for the first time, and keeps them until Close.
type Provider struct {
	opts Options

	mu     sync.Mutex
	closed bool
	dev    stack // nil if not open
	// requests: TakeRequests(true) was called.
	requests bool
	// stuck makes Destroy of a queue pair fail, for tests.
	stuck atomic.Bool
}

// A stack is the device of a provider with its communication manager.
type stack interface {
	Attr() verbs.DeviceAttr
	NewCM() (verbs.CM, error)
	count(counters)
	close() error
}

// New makes a provider.
func New(o Options) *Provider { return &Provider{opts: o} }

// open opens the device if it is not. An error does not last: the next call tries again.
func (p *Provider) open() (stack, error) {
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
		net = wire.NewUDP(wire.UDPOptions{Sockets: p.opts.Sockets})
	}
	var err error
	if p.opts.IWARP {
		p.dev, err = openIWARP(net, p)
	} else {
		p.dev, err = openRoCE(net, p)
	}
	if err != nil {
		p.dev = nil
		return nil, err
	}
	if p.requests {
		p.takeRequests()
	}
	return p.dev, nil
}

// TakeRequests decides whether connection requests are handled, or wait, perhaps for the next
// process. Call it if their sockets outlive the process (Options.Sockets).
func (p *Provider) TakeRequests(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.requests != on {
		p.requests = on
		p.takeRequests()
	}
}

func (p *Provider) takeRequests() {
	if d, ok := p.dev.(*roceDevice); ok {
		d.cm.TakeRequests(p.requests)
	}
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
	d, err := p.open()
	if err != nil {
		return nil, err
	}
	return d.NewCM()
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
	err := p.dev.close()
	p.dev = nil
	return err
}
