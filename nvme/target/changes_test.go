package target

import (
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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
