package rdma

import (
	"fmt"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// device is what all groups share of an RDMA device: its protection domain. It lives as long as a port needs it.
type device struct {
	dev  verbs.Device
	attr verbs.DeviceAttr
	pd   verbs.PD
	refs int // under Transport.mu

	// removed says that the device went away; when it returns it is another one.
	removed atomic.Bool
	// noInvalidate says that the device does not take SEND_WITH_INV, which hosts must be prepared for: RDMA section 3.6.1.
	noInvalidate atomic.Bool
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
	t.devices[dev] = d
	return d, nil
}

func (t *Transport) putDevice(d *device) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.refs--; d.refs > 0 {
		return nil
	}
	if t.devices[d.dev] == d {
		delete(t.devices, d.dev)
	}
	if err := d.pd.Dealloc(); err != nil {
		return fmt.Errorf("free the protection domain of %s: %w", d.attr.Name, err)
	}
	return nil
}

// lost takes note that a device went away: the next connection on it starts afresh, and what nobody uses is freed. Any goroutine
// may call it.
func (t *Transport) lost(dev verbs.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.devices[dev]
	if d == nil {
		return
	}
	d.removed.Store(true)
	delete(t.devices, dev)
	for g := range t.groups {
		g.retire(d)
	}
}
