package target

import (
	"bytes"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// thinDevice reports that it takes its space as it is written.
type thinDevice struct {
	backend.Device
	used atomic.Int64 // negative: an error
	// If set, Space measures, sends on asked, and then waits for hang.
	asked, hang chan struct{}
}

func (d *thinDevice) Info() backend.Info {
	i := d.Device.Info()
	i.Thin = true
	return i
}

func (d *thinDevice) Space() (allocated, free int64, err error) {
	n := d.used.Load()
	if d.hang != nil {
		d.asked <- struct{}{}
		<-d.hang
	}
	if n >= 0 {
		return n, -1, nil
	}
	return 0, 0, errors.New("unknown")
}

// TestThin: hosts see how much of a thin namespace is in use; others, and one that does not know,
// do not look thin.
func TestThin(t *testing.T) {
	thin := &thinDevice{Device: ramDeviceOpen(t, 1<<20, 4096)}
	closeLast(t, thin)
	mute := struct{ backend.Device }{thin} // without Allocated
	sub := ramSubsystem(t, 1)
	sub.Namespaces = append(sub.Namespaces, namespaces.Config{NSID: 2, Device: thin},
		namespaces.Config{NSID: 3, Device: mute})
	r, h := joined(t, 1, 0, sub)
	for _, tc := range []struct {
		nsid uint32
		used int64
		want uint64
		thin bool
	}{
		{2, 0, 0, true},
		{2, 3*4096 + 100, 3, true},
		{2, 2 << 20, 256, true},
		{2, -1, 256, false},
		{3, 4096, 256, false},
		{1, 4096, 2048, false},
	} {
		thin.used.Store(tc.used)
		id, err := nvme.Parse[nvme.IdentifyNamespace](r.ok(h.admin,
			identifyCommand(nvme.CNSNamespace, tc.nsid)).Data)
		if err != nil || id.NUSE != tc.want || id.NSFEAT&nvme.NSFEATThin != 0 != tc.thin {
			t.Errorf("namespace %d with %d bytes: %v, NUSE %d, NSFEAT %#x", tc.nsid, tc.used, err,
				id.NUSE, id.NSFEAT)
		}
	}
}

// TestThinHangs: storage that does not say how much it stores holds up neither Identify for long
// nor the end of the controller, and there is one call however many commands ask.
func TestThinHangs(t *testing.T) { synctest.Test(t, testThinHangs) }

func testThinHangs(t *testing.T) {
	r, thin := thinHarness(t)
	defer close(thin.hang)
	space := r.target.find(testSub).Namespaces.Load().Get(1).Thin()
	givenUp := make(chan struct{})
	go func() {
		admin.AwaitAll([]admin.Asker{space})
		close(givenUp)
	}()
	<-thin.asked
	<-givenUp
	before := runtime.NumGoroutine()
	for range 5 {
		h := r.connectHost(0)
		for range 20 {
			id, err := nvme.Parse[nvme.IdentifyNamespace](r.ok(h.admin,
				identifyCommand(nvme.CNSNamespace, 1)).Data)
			testutil.MustTrue(t, err == nil && id.NUSE == 256 && id.NSFEAT&nvme.NSFEATThin == 0,
				"%v, NUSE %d, NSFEAT %#x", err, id.NUSE, id.NSFEAT)
		}
		h.admin.HangUp()
		r.until("the controller has ended", func() bool { return r.target.Sessions() == 0 })
	}
	synctest.Wait()
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
}

// TestInCapsuleDataIsCopied: a device gets a copy of data in the receive slots of a queue if its
// commands may be given up.
func TestInCapsuleDataIsCopied(t *testing.T) {
	dev := faultyDevice(t, 1<<20, 512)
	b := newBare(t, namespaces.Config{NSID: 1, Device: dev, Timeout: time.Second}, 32)
	arena := b.w.Reactors[0].Memory()
	b.h.memory = arena
	slot := bytes.Repeat([]byte{1}, 4096)
	send := func() {
		r := b.reqs[0]
		r.Reset()
		r.SQE = nvme.SQE{}
		r.SQE.SetOpcode(nvme.NVMWrite)
		r.SQE.SetFlags(psdtSGL << 6)
		r.SQE.SetNSID(1)
		r.SQE.RW().Set(0, 8, 0)
		r.HostLength, r.InCapsule = 4096, true
		b.h.Prepare([]*fabric.Request{r})
		r.Segs = append(r.Segs, mem.Segment{B: slot[:1000], Region: -1},
			mem.Segment{B: slot[1000:], Region: -1})
		b.h.Execute([]*fabric.Request{r})
	}
	free, done := arena.Available(), b.q.done
	send()
	testutil.MustTrue(t, b.q.done == done+1 && b.q.bad == 0 && arena.Available() == free,
		"%d done, %d failed, %d bytes taken", b.q.done-done, b.q.bad, free-arena.Available())
	dev.Hold(nil)
	send()
	b.w.Advance(3 * time.Second)
	testutil.MustTrue(t, b.q.done == done+2 && b.q.bad == 1, "%d done, %d failed", b.q.done-done,
		b.q.bad)
	clear(slot) // the next capsule
	dev.Release()
	b.w.Settle()
	testutil.True(t, arena.Available() == free, "%d bytes have not come back",
		free-arena.Available())
	c := backendtest.NewClient(t, dev, 4096)
	defer c.Close()
	got := c.Memory(0, 4096)
	c.MustDo(c.Read(0, got))
	testutil.True(t, bytes.Equal(got, bytes.Repeat([]byte{1}, 4096)),
		"the device wrote the data of a later capsule")
}

// TestCancelWithoutHandOver: a command that cannot be given up, because there is no memory for a
// copy of its in-capsule data, is canceled at least.
func TestCancelWithoutHandOver(t *testing.T) {
	b, dev, prepare := capsuleWrite(t)
	dev.HonorCancel()
	dev.Hold(nil)
	var all mem.Allocation
	b.h.memory.Alloc(&all, nil, b.h.memory.Max(nil))
	defer all.Free()
	r, done := prepare(), b.q.done
	b.h.Execute([]*fabric.Request{r})
	b.w.Advance(2 * time.Second)
	if b.q.done != done+1 || dev.Held() != 0 || r.CQE.Status() != nvme.AbortRequested {
		t.Errorf("%d done, the device has %d, %v", b.q.done-done, dev.Held(), r.CQE.Status())
	}
	dev.Release()
}
