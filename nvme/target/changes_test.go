package target

import (
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// changing is a device with a description that tests change.
type changing struct {
	backend.Device
	i      backend.Info
	notify func()
}

func (d *changing) Info() backend.Info { return d.i }
func (d *changing) Notify(fn func())   { d.notify = fn }
func (d *changing) set(fn func(*backend.Info)) {
	fn(&d.i)
	d.notify()
}

// late is a device that changes while it is added, just before it is given the function to call.
type late struct {
	backend.Device
	change  func(*backend.Info)
	changed atomic.Bool
}

func (d *late) Notify(func()) { d.changed.Store(true) }

func (d *late) Info() backend.Info {
	info := d.Device.Info()
	if d.changed.Load() {
		d.change(&info)
	}
	return info
}

// TestChangeWhileAdded: a change between the first look at a device and Notify is not missed.
func TestChangeWhileAdded(t *testing.T) {
	shrunk := &late{
		Device: ramDevice(t, 1<<20, 512), change: func(i *backend.Info) { i.Size /= 2 },
	}
	offline := &late{
		Device: ramDevice(t, 1<<20, 512), change: func(i *backend.Info) { i.Offline = true },
	}
	r := newHarness(t, 1, subsystemOf(testSub, shrunk, offline))
	n := r.connectHost(0).namespace(1).NSZE
	testutil.True(t, n == 1024, "the namespace has %d blocks, want 1024", n)
	l := r.target.Stats()
	testutil.True(t, l[0].Ready && !l[1].Ready, "%+v", l)
}

// watched is a device that calls a function when the notifications of its changes begin.
type watched struct {
	backend.Device
	begin func()
}

func (d *watched) Notify(fn func()) {
	if fn != nil && d.begin != nil {
		d.begin()
	}
}

// TestHiddenAndRemoved: a host that may no longer use a namespace is told so, also if the namespace
// is removed meanwhile. The removal is told to the hosts that may use it until then.
func TestHiddenAndRemoved(t *testing.T) {
	dev := &watched{Device: ramDevice(t, 1<<20, 512)}
	r := newHarness(t, 1, subsystemOf(testSub, dev))
	loses, keeps := r.connectHost(0), r.connectOther()
	var events []*fabrictest.Command
	for _, h := range []*host{loses, keeps} {
		r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)))
		events = append(events, r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil)))
	}
	var removed error
	dev.begin = func() { _, removed = r.target.RemoveNamespace(testSub, 1) }
	cfg := namespaces.Config{NSID: 1, Hosts: []string{otherHost}}
	r.during(func() error { return r.target.UpdateNamespace(testSub, cfg, nil) })
	r.must(removed)
	r.w.Settle()
	testutil.True(t, events[0].Done && events[1].Done, "told: %v, %v", events[0].Done,
		events[1].Done)
}
