package target

import (
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// changing is a device whose description tests change.
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

// TestDeviceChanges: when a device grows, shrinks, goes offline and returns, hosts are notified and
// commands are checked against its current size.
func TestDeviceChanges(t *testing.T) {
	dev := &changing{Device: ramDevice(t, 1<<20, 512)}
	dev.i = dev.Device.Info()
	r := newHarness(t, 2,
		SubsystemConfig{
			NQN: testSub, AllowAnyHost: true,
			Namespaces: []NamespaceConfig{{NSID: 1, Device: dev}},
		})
	h := r.connectHost(1)
	q := h.io[0]
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)))
	last := func() *fabrictest.Command { return rw(nvme.NVMRead, 1, 2047, 1, make([]byte, 512)) }
	for _, step := range []struct {
		name   string
		change func(*backend.Info)
		blocks uint64
		ready  bool
		check  func()
	}{
		{
			"shrinks", func(i *backend.Info) { i.Size = 512 << 10 }, 1024, true,
			func() { r.status(q, last(), outOfRange) },
		},
		{
			"grows", func(i *backend.Info) { i.Size = 1 << 20 }, 2048, true,
			func() { r.ok(q, last()) },
		},
		{
			"goes offline", func(i *backend.Info) { i.Offline = true }, 2048, false,
			func() { r.notReady(q, last()) },
		},
		{
			"comes back", func(i *backend.Info) { i.Offline = false }, 2048, true,
			func() { r.ok(q, last()) },
		},
		{
			"is of no use", func(i *backend.Info) { i.BlockSize = 4096 }, 2048, false,
			func() { r.notReady(q, last()) },
		},
		{
			"is as it was", func(i *backend.Info) { i.BlockSize = 512 }, 2048, true,
			func() { r.ok(q, last()) },
		},
	} {
		aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
		dev.set(step.change)
		r.until("hosts are notified", func() bool { return aer.Done })
		id, err := nvme.Parse[nvme.IdentifyNamespace](r.ok(h.admin,
			identifyCommand(nvme.CNSNamespace, 1)).Data)
		if err != nil {
			t.Fatal(err)
		}
		if id.NSZE != step.blocks || (r.nstat(h)&nvme.NSTATReady != 0) != step.ready {
			t.Errorf("%s: %d blocks, NSTAT %#x", step.name, id.NSZE, r.nstat(h))
		}
		step.check()
		dev.notify() // nothing new
		r.ok(h.admin, logCommand(nvme.LogChangedNamespaces, 4096, 0))
	}
	r.during(r.target.Close)
	if dev.notify != nil {
		t.Error("the device notifies a namespace that was removed")
	}
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
	if n := r.connectHost(0).namespace(1).NSZE; n != 1024 {
		t.Errorf("the namespace has %d blocks, want 1024", n)
	}
	if l := r.infos(); !l[0].Ready || l[1].Ready {
		t.Errorf("%+v", l)
	}
}

// TestOfflineWhenAdded: the namespace of a device that is offline is not ready.
func TestOfflineWhenAdded(t *testing.T) {
	dev := &changing{Device: ramDevice(t, 1<<20, 512)}
	dev.i = dev.Device.Info()
	dev.i.Offline = true
	r := newHarness(t, 1, subsystemOf(testSub, dev))
	if l := r.infos(); l[0].Ready {
		t.Errorf("%+v", l[0])
	}
	dev.set(func(i *backend.Info) { i.Offline = false })
	if l := r.infos(); !l[0].Ready || l[0].Returns != 1 {
		t.Errorf("%+v", l[0])
	}
}
