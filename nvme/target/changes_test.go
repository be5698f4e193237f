package target

import (
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
