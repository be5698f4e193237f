package rdma

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// device is what all groups share of an RDMA device: its protection domain. It lives as long as a
// port needs it.
type device struct {
	dev  verbs.Device
	attr verbs.DeviceAttr
	pd   verbs.PD
	lent *lentTable
	stop func() // ends Transport.async
	refs int    // under Transport.mu

	// removed says that the device went away; when it returns it is another one.
	removed atomic.Bool
	// noInvalidate says that the device does not take SEND_WITH_INV, which hosts must be prepared
	// for: RDMA section 3.6.1. It is found out by a post that fails (postSend) or by a first one
	// that ends its queue (suspectInvalidate).
	noInvalidate atomic.Bool
}

// suspectInvalidate gives SEND_WITH_INV up if one is in flight on a queue that fails for no fault
// of the host's, and none has ever completed. The host connects again and is served without.
// Reactor only.
func (q *queue) suspectInvalidate() {
	d := q.p.dev
	if q.p.invalidates || d.noInvalidate.Load() {
		return
	}
	for i := range q.reqs {
		if r := &q.reqs[i]; r.state == requestSending && r.invalidate {
			d.noInvalidate.Store(true)
			q.g.t.log.Warn("RDMA device does not invalidate keys, going on without", "device",
				d.attr.Name)
			return
		}
	}
}

// device finds or makes the entry of a device; putDevice gives it back. Not on a reactor.
func (t *Transport) device(dev verbs.Device) (*device, error) {
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
	d.lent = newLentTable(d, t.log)
	// On soft iWARP SEND_WITH_INV is not usable from user space, and says so by getting stuck:
	// libsiw passes the wrong field as key (rdma-core, providers/siw/siw.c, push_send_wqe), the
	// kernel does not take it inline (siw_qp.c, siw_activate_tx_from_sq), and for short data that
	// is not inline it may use the wrong address space (siw_qp_tx.c, siw_try_1seg).
	d.noInvalidate.Store(d.attr.VendorID == verbs.VendorSIW)
	if d.stop, err = dev.Watch(func(ev verbs.AsyncEvent) { t.async(d, ev) }); err != nil {
		return nil, errors.Join(err, pd.Dealloc())
	}
	t.devices[dev] = d
	return d, nil
}

func (t *Transport) putDevice(d *device) error {
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
	err := d.lent.close()
	if e := d.pd.Dealloc(); e != nil {
		err = errors.Join(err, fmt.Errorf("free the protection domain of %s: %w", d.attr.Name, e))
	}
	return err
}

// lost takes note that a device went away: the next connection on it starts afresh, and what nobody
// uses is freed. Any goroutine may call it.
func (t *Transport) lost(dev verbs.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.devices[dev]
	if d == nil {
		return
	}
	d.removed.Store(true)
	delete(t.devices, dev)
	delete(t.unshared, dev)
	for g := range t.groups {
		g.retire(d)
	}
}
