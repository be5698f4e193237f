package rdma

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// device is the part of an RDMA device that all groups share: its protection domain and the
// registrations of namespaces' memory. It lives as long as a poller needs it.
type device struct {
	dev  verbs.Device
	attr verbs.DeviceAttr
	pd   verbs.PD
	mrs  *mrCache
	stop func() // ends the calls of Transport.asyncEvent
	refs int    // under Transport.mu
	// quarantined: some queue pairs could not be destroyed. Under Transport.mu.
	quarantined bool

	// The numbers of objects made on the device and not freed.
	qps, cqs, mrCount atomic.Int64

	// removed reports whether the device was removed. If it returns, it is another verbs.Device.
	removed atomic.Bool
	// noInvalidate reports whether the device lacks SEND_WITH_INV. Hosts must be prepared for that
	// (RDMA section 3.6.1). It is set when a post fails (postSend), or when the first
	// SEND_WITH_INV ends its queue (suspectInvalidate).
	noInvalidate atomic.Bool
}

// acquireDevice finds or makes the entry of a device; releaseDevice gives it back. Not on a
// reactor.
func (t *Transport) acquireDevice(dev verbs.Device) (*device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.devices[dev]; d != nil {
		d.refs++
		return d, nil
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	d := &device{dev: dev, attr: dev.Attr(), pd: pd, refs: 1}
	d.mrs = newMRCache(d, t.cfg.Log)
	// Soft iWARP cannot do SEND_WITH_INV from user space, and gets stuck on it: libsiw passes the
	// wrong field as key (rdma-core, providers/siw/siw.c, push_send_wqe), the kernel does not take
	// it inline (siw_qp.c, siw_activate_tx_from_sq), and for short data that is not inline it may
	// use the wrong address space (siw_qp_tx.c, siw_try_1seg).
	d.noInvalidate.Store(d.attr.VendorID == verbs.VendorSIW)
	if d.stop, err = dev.Watch(func(ev verbs.AsyncEvent) { t.asyncEvent(d, ev) }); err != nil {
		return nil, errors.Join(err, pd.Dealloc())
	}
	t.devices[dev] = d
	return d, nil
}

// Devices lists the devices with queues, or that are about to be freed. Any goroutine.
func (t *Transport) Devices() (list []observed.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.devices {
		list = append(list, observed.Device{
			Name: d.attr.Name, QueuePairs: d.qps.Load(), CompletionQueues: d.cqs.Load(),
			MemoryRegions: d.mrCount.Load(), MaxQueuePairs: int64(d.attr.MaxQP),
			MaxCompletionQueues: int64(d.attr.MaxCQ), MaxMemoryRegions: int64(d.attr.MaxMR),
		})
	}
	return list
}

// registerMR registers memory. The caller subtracts deregistered memory from mrCount.
func (d *device) registerMR(b []byte, access verbs.Access) (verbs.MR, error) {
	mr, err := d.pd.RegMR(b, access)
	if err != nil {
		return nil, err
	}
	d.mrCount.Add(1)
	return countedMR{mr, d}, nil
}

type countedMR struct {
	verbs.MR
	d *device
}

func (m countedMR) Dereg() error {
	err := m.MR.Dereg()
	if err == nil {
		m.d.mrCount.Add(-1)
	}
	return err
}

func (t *Transport) releaseDevice(d *device) error {
	t.mu.Lock()
	d.refs--
	last := d.refs == 0
	if last && t.devices[d.dev] == d {
		delete(t.devices, d.dev)
	}
	t.mu.Unlock()
	if !last {
		return nil
	}
	d.stop()
	if d.quarantined {
		return nil
	}
	err := d.mrs.close()
	if e := d.pd.Dealloc(); e != nil {
		err = errors.Join(err, fmt.Errorf("free the protection domain of %s: %w", d.attr.Name, e))
	}
	return err
}

// deviceRemoved frees the resources of a removed device that no queue uses. The next connection on
// it starts with a new entry. Any goroutine may call it.
func (t *Transport) deviceRemoved(dev verbs.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.devices[dev]
	if d == nil {
		return
	}
	d.removed.Store(true)
	delete(t.devices, dev)
	delete(t.noSRQ, dev)
	for g := range t.groups {
		g.freePoller(d)
	}
}

// suspectInvalidate disables SEND_WITH_INV if one is in flight on a queue that fails through no
// fault of the host, and none has ever completed. The host connects again and is served without it.
// Reactor only.
func (q *queue) suspectInvalidate() {
	d := q.p.dev
	if q.p.invalidateWorks || d.noInvalidate.Load() {
		return
	}
	for i := range q.reqs {
		if r := &q.reqs[i]; r.state == requestSending && r.invalidate {
			d.noInvalidate.Store(true)
			q.g.t.cfg.Log.Warn("RDMA device does not invalidate keys, continuing without", "device",
				d.attr.Name)
			return
		}
	}
}

var (
	errDeviceFatal = errors.New("the RDMA device failed")
	errCQ          = errors.New("the device reports CQ_ERR")
	errSRQ         = errors.New("the device reports SRQ_ERR")
)

// asyncEvent passes an asynchronous event of a device to the groups. It runs on the goroutine of
// the binding and does not block.
func (t *Transport) asyncEvent(d *device, ev verbs.AsyncEvent) {
	switch ev.Type {
	case verbs.AsyncCQErr, verbs.AsyncSRQErr, verbs.AsyncQPFatal, verbs.AsyncQPReqErr,
		verbs.AsyncQPAccessErr, verbs.AsyncQPLastWQEReached:
	case verbs.AsyncDeviceFatal:
		t.cfg.Log.Error("RDMA device failed, its queues end", "device", d.attr.Name)
		defer t.deviceRemoved(d.dev) // later connections make a new entry, or fail
	case verbs.AsyncPortErr, verbs.AsyncWQFatal, verbs.AsyncPathMigErr:
		t.cfg.Log.Warn("RDMA device event", "device", d.attr.Name, "event", ev.Type)
		return
	case verbs.AsyncPortActive:
		t.cfg.Log.Info("RDMA port is active", "device", d.attr.Name)
		return
	// Events of addresses and subnet management, and events that also show as a receive or as the
	// end of a queue pair.
	default:
		t.cfg.Log.Debug("RDMA device event", "device", d.attr.Name, "event", ev.Type)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for g := range t.groups {
		g.cfg.Loop.Post(func() { g.asyncEvent(d, ev) })
	}
}

// asyncEvent ends the queues affected by an event of a device.
func (g *group) asyncEvent(d *device, ev verbs.AsyncEvent) {
	switch ev.Type {
	case verbs.AsyncCQErr:
		for _, p := range g.pollers {
			for _, c := range p.polled {
				if c.CQ == ev.CQ {
					c.fail(errCQ)
				}
			}
		}
		return
	case verbs.AsyncSRQErr:
		for s := range g.srqs.all() {
			if s.SRQ == ev.SRQ {
				s.fail(errSRQ)
			}
		}
		return
	}
	g.inPieces(g.queues.walk(func(q *queue) int {
		switch {
		case q.p.dev != d:
		case ev.Type == verbs.AsyncDeviceFatal:
			q.fail(errDeviceFatal)
		case q.qp.Num() != ev.QPNum:
		case ev.Type == verbs.AsyncQPLastWQEReached:
			q.lastWQEReached()
		default:
			q.fail(fmt.Errorf("the device reports %v", ev.Type))
		}
		return 1
	}), func() {})
}
