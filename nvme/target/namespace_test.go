package target

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestSwapSmaller: commands that waited are checked against the new device. Commands beyond its end
// never reach it. Hosts are notified.
func TestSwapSmaller(t *testing.T) {
	next := &recorder{
		Device: ramDevice(t, 512<<10, 512), info: func(i *backend.Info) { i.VolatileCache = true },
	}
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	q := h.io[0]
	r.ok(q, readAt(2047))
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)))
	aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	swap := func(readOnly bool) (fits, beyond, write *fabrictest.Command) {
		x, _ := r.exchange(namespaces.Config{ReadOnly: readOnly})
		fits, beyond = r.send(q, readAt(1023)), r.send(q, readAt(1024))
		write = r.send(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
		next.take()
		r.must(x.end(next, nil))
		r.until("commands continue", func() bool { return fits.Done && beyond.Done && write.Done })
		return fits, beyond, write
	}
	fits, beyond, write := swap(false)
	testutil.True(t, fits.CQE.Status().OK() && beyond.CQE.Status()&^nvme.More == outOfRange &&
		write.CQE.Status().OK(), "%v, %v, %v", fits.CQE.Status(), beyond.CQE.Status(),
		write.CQE.Status())
	if l := next.take(); len(l) != 2 || l[1].Flags&backend.FUA == 0 {
		t.Errorf("the new device got %+v; the host was told that there is no cache", l)
	}
	r.until("hosts are notified", func() bool { return aer.Done })
	testutil.True(t, h.namespace(1).NSZE == 1024, "%d blocks", h.namespace(1).NSZE)
	if _, _, write = swap(true); write.CQE.Status()&^nvme.More != writeProtected {
		t.Errorf("write: %v", write.CQE.Status())
	}
	l := next.take()
	testutil.True(t, len(l) == 1, "the device got %+v, which is write protected", l)
}

// TestSwapUnseen: hosts get no event if they see no difference, as when the same storage is opened
// under another path.
func TestSwapUnseen(t *testing.T) {
	dev := ramDevice(t, 1<<20, 512)
	r, h := joined(t, 1, 0, subsystemOf(testSub, dev))
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)))
	aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	next := &recorder{Device: dev, info: func(i *backend.Info) { i.Identity = "/dev/other" }}
	x, _ := r.exchange(namespaces.Config{})
	r.must(x.end(next, nil))
	r.w.Settle()
	testutil.True(t, !aer.Done, "hosts are notified")
	ns := r.target.find(testSub).Namespaces.Load().Get(1)
	testutil.Equal(t, ns.Device().Info().Identity, "/dev/other", "the log calls it")
}

// TestSwapFails: with the device that swap returns the namespace goes on as it was, without one it
// is not ready, until there is one again.
func TestSwapFails(t *testing.T) {
	dev, opened := ramDevice(t, 1<<20, 512), ramDevice(t, 1<<20, 512)
	r, h := joined(t, 1, 1, subsystemOf(testSub, dev))
	q := h.io[0]
	failed := errors.New("cannot open")
	x, _ := r.exchange(namespaces.Config{ReadOnly: true})
	write := r.send(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	testutil.Is(t, x.end(opened, failed), failed, "")
	if r.until("it goes on", func() bool { return write.Done }); !write.CQE.Status().OK() {
		t.Errorf("%v: the namespace became read-only", write.CQE.Status())
	}
	x, old := r.exchange(namespaces.Config{})
	testutil.True(t, old == opened, "the namespace has another device than swap returned")
	read := r.send(q, readAt(0))
	testutil.Is(t, x.end(nil, failed), failed, "")
	r.until("the refusal waits", func() bool { return !r.raw[0].delayed.Empty() })
	r.w.Advance(time.Second)
	if st := read.CQE.Status() &^ nvme.More; !read.Done || st != notReady ||
		r.target.Stats()[0].Ready {
		t.Errorf("without a device: %v %v, %+v", read.Done, st, r.target.Stats()[0])
	}
	r.notReady(q, readAt(0))
	x, old = r.exchange(namespaces.Config{})
	testutil.True(t, old == nil, "there is no device, and swap is called with %v", old)
	r.must(x.end(dev, nil))
	r.ok(q, readAt(0))
	testutil.True(t, r.target.Stats()[0].Ready, "%+v", r.target.Stats()[0])
}

// TestSwapBlockSize: a device with another block size is not used.
func TestSwapBlockSize(t *testing.T) {
	dev, other := ramDevice(t, 1<<20, 512), ramDevice(t, 1<<20, 4096)
	r, h := joined(t, 1, 1, subsystemOf(testSub, dev))
	x, _ := r.exchange(namespaces.Config{})
	write := r.send(h.io[0], rw(nvme.NVMWrite, 1, 8, 8, make([]byte, 4096)))
	testutil.Fails(t, x.end(other, nil), "from 512 to 4096", "")
	r.until("the refusal waits", func() bool { return !r.raw[0].delayed.Empty() })
	r.w.Advance(time.Second)
	if st := write.CQE.Status() &^ nvme.More; st != notReady || r.target.Stats()[0].Ready {
		t.Errorf("%v, %+v", st, r.target.Stats()[0])
	}
	x, old := r.exchange(namespaces.Config{})
	testutil.True(t, old == other, "the device is %v", old)
	r.must(x.end(dev, nil))
	r.ok(h.io[0], readAt(0))
}

// TestUpdateNamespace: attributes change without an exchange of the device, even if it hangs.
func TestUpdateNamespace(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 1)
	q := h.io[0]
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)))
	dev.Hold(nil)
	hung := r.send(q, readAt(0))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	dev.Full(true)
	accepted := r.send(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.w.Settle()
	cfg := namespaces.Config{NSID: 1, ReadOnly: true, Timeout: time.Second, UUID: uuid.New()}
	update := func() {
		aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
		r.during(func() error { return r.target.UpdateNamespace(testSub, cfg, nil) })
		r.until("hosts are notified", func() bool { return aer.Done })
		r.ok(h.admin, logCommand(nvme.LogChangedNamespaces, 4096, 0))
	}
	update()
	dev.Full(false)
	r.until("the write is refused", func() bool { return accepted.Done })
	testutil.Equal(t, accepted.CQE.Status()&^nvme.More, writeProtected,
		"a write that no device had when the namespace became read-only")
	id := h.namespace(1)
	testutil.True(t, id.NSATTR == nvme.NSATTRWriteProtected && id.NGUID == [16]byte{}, "%+v", id)
	r.w.Advance(2 * time.Second)
	st := hung.CQE.Status() &^ nvme.More
	testutil.True(t, hung.Done && st == notReady, "after the new timeout: %v %v", hung.Done, st)
	dev.Release()
	r.w.Settle()
	cfg.ReadOnly = false
	update()
	cfg.UUID = uuid.New()
	update()
	r.ok(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	testutil.True(t, r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 2}, nil) != nil,
		"a namespace that does not exist was changed")
}

// TestUpdateKeepsAnswers: the answers of a drive and of thin storage stay known while both stay the
// same.
func TestUpdateKeepsAnswers(t *testing.T) {
	dev := &thinDevice{Device: ramDevice(t, 1<<20, 512)}
	dev.used.Store(4096)
	cfg := namespaces.Config{NSID: 1, Device: dev, Drive: &testDrive{id: "a"}}
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, Namespaces: []namespaces.Config{cfg}})
	r.target.CheckHealth()
	update := func(id string) observed.Namespace {
		cfg.Drive = &testDrive{id: id}
		r.must(r.target.UpdateNamespace(testSub, cfg, nil))
		return r.target.Stats()[0]
	}
	if s := update("a"); s.Drive.Answered.IsZero() || s.Allocated != 4096 {
		t.Errorf("%+v, %d bytes are allocated", s.Drive, s.Allocated)
	}
	s := update("b")
	testutil.True(t, s.Drive.Answered.IsZero() && s.Drive.ID == "b", "%+v", s.Drive)
}

// TestSwapDegraded: a device that was opened again is no longer write protected because the old one
// had lost writes.
func TestSwapDegraded(t *testing.T) {
	lost := &changing{Device: ramDevice(t, 1<<20, 512)}
	lost.i = lost.Device.Info()
	r, h := joined(t, 1, 1, subsystemOf(testSub, lost))
	write := func() *fabrictest.Command { return rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)) }
	lost.set(func(i *backend.Info) { i.Degraded = true })
	r.status(h.io[0], write(), writeProtected)
	x, _ := r.exchange(namespaces.Config{})
	testutil.True(t, lost.notify == nil, "the old device still notifies")
	r.must(x.end(lost, nil)) // the same
	r.status(h.io[0], write(), writeProtected)
	next := &changing{Device: lost.Device, i: lost.Device.Info()}
	x, _ = r.exchange(namespaces.Config{})
	r.must(x.end(next, nil))
	r.ok(h.io[0], write())
	next.set(func(i *backend.Info) { i.Offline = true })
	testutil.True(t, !r.target.Stats()[0].Ready, "the namespace does not follow its new device")
	next.set(func(i *backend.Info) { i.Standby = true })
	x, _ = r.exchange(namespaces.Config{})
	testutil.Check(t, x.end(nil, nil))
	testutil.Equal(t, r.nstat(h), 0, "NSTAT of a namespace without storage")
}
