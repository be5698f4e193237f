package target

import (
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// markStore is a marks.Store in memory.
type markStore struct {
	mu    sync.Mutex
	kept  map[uint32]*marks.Kept // by NSID
	err   error
	calls int
	gate  chan struct{} // each change takes one, unless it is nil
	wake  func()
}

func newMarkStore() *markStore { return &markStore{kept: map[uint32]*marks.Kept{}} }

func (s *markStore) Load(_ string, nsid uint32) *marks.Kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[nsid]
}

func (s *markStore) Save(_ string, nsid uint32, u *marks.Kept) error {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	if s.calls++; s.err != nil {
		return s.err
	}
	if s.kept[nsid] = u; u == nil {
		delete(s.kept, nsid)
	}
	return nil
}

func (s *markStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// blocks are the ranges that are kept of namespace 1, in blocks of 512 bytes.
func (s *markStore) blocks() (list [][2]int64) {
	if u := s.Load("", 1); u != nil {
		for _, r := range u.Ranges {
			list = append(list, [2]int64{r.Off / 512, r.End / 512})
		}
	}
	return list
}

// durable is a RAM device that says that its content outlives it, with a volatile cache.
func durable(t testing.TB) *backendtest.Faulty {
	dev := backendtest.NewFaulty(&recorder{
		Device: ramDeviceOpen(t, 4<<20, 512),
		info:   func(i *backend.Info) { i.Volatile, i.VolatileCache, i.Identity = false, true, "a" },
	})
	closeLast(t, dev)
	return dev
}

func markHarness(t *testing.T, store *markStore, devs ...backend.Device) (*harness, *host) {
	t.Helper()
	sub := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	for i, d := range devs {
		sub.Namespaces = append(sub.Namespaces, namespaces.Config{NSID: uint32(i + 1), Device: d})
	}
	r := newHarness(t, 2)
	r.target.shared.Uncorrectable, store.wake = store, r.w.Reactors[0].Wake
	r.must(r.target.AddSubsystem(sub))
	return r, r.connectHost(2)
}

func mark(slba uint64, n uint32) *fabrictest.Command {
	return rw(nvme.NVMWriteUncorrectable, 1, slba, n, nil)
}

const unrecovered = nvme.UnrecoveredReadError | nvme.DNR

// TestMarksAreStored: a command that changes the marks of storage that outlives the target
// completes when that is stored, and fails if it is not; blocks stay marked then, and data that
// takes the place of a mark is durable.
func TestMarksAreStored(t *testing.T) {
	dev, store := durable(t), newMarkStore()
	store.gate = make(chan struct{}, 1)
	r, h := markHarness(t, store, dev)
	q := h.io[0]
	r.ok(q, readAt(0)) // opens the channel
	waits := func(c *fabrictest.Command) *fabrictest.Command {
		t.Helper()
		r.send(q, c)
		r.w.Settle()
		if c.Done {
			t.Fatalf("%#x has completed with %v before it was stored", c.SQE.Opcode(),
				c.CQE.Status())
		}
		store.gate <- struct{}{}
		r.until("it is stored", func() bool { return c.Done })
		return c
	}
	testutil.MustEqual(t, waits(mark(5, 3)).CQE.Status(), nvme.Success, "")
	rec := dev.Device.(*recorder)
	rec.take()
	waits(rw(nvme.NVMWrite, 1, 6, 1, make([]byte, 512)))
	l := rec.take()
	testutil.True(t, len(l) == 1 && l[0].Flags&backend.FUA != 0, "the device got %+v", l)
	got := store.blocks()
	testutil.True(t, reflect.DeepEqual(got, [][2]int64{{5, 6}, {7, 8}}), "kept: %v", got)
	r.ok(q, readAt(6))

	store.fail(errors.New("full"))
	for _, c := range []*fabrictest.Command{
		rw(nvme.NVMWrite, 1, 7, 1, make([]byte, 512)), mark(20, 1),
	} {
		if st := waits(c).CQE.Status() &^ nvme.More; st != nvme.InternalError {
			t.Errorf("%#x: %v", c.SQE.Opcode(), st)
		}
	}
	r.status(q, readAt(7), unrecovered)
	r.status(q, readAt(20), unrecovered) // the store may have it
	store.fail(nil)
	waits(rw(nvme.NVMWrite, 1, 7, 14, make([]byte, 14*512)))
	r.ok(q, readAt(20))
	got = store.blocks()
	testutil.True(t, reflect.DeepEqual(got, [][2]int64{{5, 6}}), "kept: %v", got)
	close(store.gate)
}

// TestMarksAfterRestart: a namespace has the marks of its storage, for the blocks that the storage
// still has.
func TestMarksAfterRestart(t *testing.T) {
	store := newMarkStore()
	start := func(dev backend.Device, fn func(r *harness, h *host)) {
		t.Helper()
		t.Run("", func(t *testing.T) {
			r, h := markHarness(t, store, dev)
			fn(r, h)
		})
	}
	other := func(change func(*backend.Info)) backend.Device {
		return &recorder{Device: durable(t), info: change}
	}
	start(durable(t), func(r *harness, h *host) { r.ok(h.io[0], mark(8000, 2)) })
	start(durable(t), func(r *harness, h *host) {
		r.status(h.io[0], readAt(8001), unrecovered)
		r.removeNamespace(1)
		r.must(r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: durable(t)}))
		r.status(h.io[0], readAt(8001), unrecovered)
	})
	stored := func(r *harness, want [][2]int64) {
		r.t.Helper()
		r.until("the store", func() bool { return reflect.DeepEqual(store.blocks(), want) })
	}
	start(other(func(i *backend.Info) { i.Size = 8001 * 512 }), func(r *harness, _ *host) {
		stored(r, [][2]int64{{8000, 8001}})
	})
	start(other(func(i *backend.Info) { i.Identity = "b" }), func(r *harness, h *host) {
		r.ok(h.io[0], readAt(8000))
		stored(r, nil)
		r.ok(h.io[0], mark(1, 1))
		x, _ := r.exchange(namespaces.Config{})
		r.must(x.end(durable(t), nil))
		r.ok(h.io[0], readAt(1))
		stored(r, nil)
		r.ok(h.io[0], mark(2, 1))
		stored(r, [][2]int64{{2, 3}})
		r.removeNamespace(1)
		r.target.ForgetNamespace(testSub, 1)
		stored(r, nil)
		r.must(store.Save("", 1, &marks.Kept{Identity: "a"}))
		r.target.ForgetNamespace(testSub, 1) // of a namespace that was not there
		testutil.True(t, store.Load("", 1) == nil, "the store was not asked to forget")
	})
	start(ramDevice(t, 1<<20, 512), func(r *harness, h *host) {
		r.ok(h.io[0], mark(1, 1))
		r.status(h.io[0], readAt(1), unrecovered)
	})
	testutil.True(t, store.blocks() == nil, "marks of memory were stored")
}

// TestMarksOfStorageThatComesBack: a mark that could not be removed from the store would come back
// with a restart, over data written since. So it is there until its block is written.
func TestMarksOfStorageThatComesBack(t *testing.T) {
	store := newMarkStore()
	r, h := markHarness(t, store, durable(t))
	q := h.io[0]
	r.ok(q, mark(7, 1))
	store.fail(errors.New("full"))
	x, a := r.exchange(namespaces.Config{})
	r.must(x.end(&recorder{Device: ramDevice(t, 4<<20, 512), info: func(i *backend.Info) {
		i.Volatile, i.Identity = false, "b"
	}}, nil))
	r.ok(q, readAt(7))
	x, _ = r.exchange(namespaces.Config{})
	r.must(x.end(a, nil))
	r.status(q, readAt(7), unrecovered)
	store.fail(nil)
	r.ok(q, rw(nvme.NVMWrite, 1, 7, 1, fill(1, 512)))
	l := store.blocks()
	testutil.True(t, l == nil, "kept: %v", l)
}

// TestCutDoesNotWait: storage that has become smaller while the target was stopped is added while
// the store does not answer. Blocks marked afterwards stay marked.
func TestCutDoesNotWait(t *testing.T) {
	store := newMarkStore()
	store.kept[1] = &marks.Kept{
		Identity: "a", Ranges: []backend.Range{{Off: 8192 * 512, End: 8193 * 512}},
	}
	store.gate = make(chan struct{})
	timeout := time.AfterFunc(5*time.Second, func() {
		t.Error("adding a namespace waits for the store")
		close(store.gate)
	})
	r, h := markHarness(t, store, durable(t))
	if timeout.Stop() {
		close(store.gate)
	}
	r.ok(h.io[0], mark(0, 1))
	r.until("the store", func() bool {
		return reflect.DeepEqual(store.blocks(), [][2]int64{{0, 1}})
	})
}
