package target

import (
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// protectionStore is a ProtectionStore in memory.
type protectionStore struct {
	mu   sync.Mutex
	kept map[uint32]bool // by NSID
	err  error
}

func (s *protectionStore) Protected(_ string, nsid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[nsid]
}

func (s *protectionStore) SetProtected(_ string, nsid uint32, protected bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.kept[nsid] = protected
	}
	return s.err
}

func newProtectionStore() *protectionStore { return &protectionStore{kept: map[uint32]bool{}} }

// protectHarness has a target on which hosts can write protect namespaces.
func protectHarness(t *testing.T, store *protectionStore, sub subsystems.Config) *harness {
	t.Helper()
	r := newHarness(t, 2)
	r.target.shared.Protection = store
	r.must(r.target.AddSubsystem(sub))
	return r
}

func protectCommand(nsid uint32, to nvme.WriteProtection) *fabrictest.Command {
	return withNSID(setFeature(nvme.FeatureWriteProtect, uint32(to)), nsid)
}

// protected checks the write protection of a namespace as the host sees it.
func (h *host) protected(nsid uint32, state nvme.WriteProtection) {
	h.r.t.Helper()
	get := withNSID(getFeature(nvme.FeatureWriteProtect, nvme.FeatureCurrent, 0), nsid)
	if got := h.r.ok(h.admin, get).CQE.DW0(); got != uint32(state) {
		h.r.t.Errorf("namespace %d: state %d, want %d", nsid, got, state)
	}
	st, attr := nvme.Success, nvme.NSATTR(0)
	if state != nvme.NoWriteProtect {
		st, attr = writeProtected, nvme.NSATTRWriteProtected
	}
	testutil.Equal(h.r.t, h.namespace(nsid).NSATTR, attr, "namespace %d: NSATTR", nsid)
	h.r.status(h.io[0], rw(nvme.NVMWrite, nsid, 0, 1, make([]byte, 512)), st)
	h.r.status(h.io[0], rw(nvme.NVMWriteZeroes, nsid, 0, 1, nil), st)
	h.r.status(h.io[0], dsm(nsid, true, [2]uint64{0, 1}), st)
	h.r.ok(h.io[0], rw(nvme.NVMRead, nsid, 0, 1, make([]byte, 512)))
	h.r.ok(h.io[0], command(nvme.NVMFlush, nsid, nil))
}

// TestWriteProtectionWaits: a namespace is protected when its device has finished every write and
// has flushed them. Another change meanwhile is to be tried again.
func TestWriteProtectionWaits(t *testing.T) {
	held := faultyDevice(t, 1<<20, 512)
	dev := &recorder{Device: held, info: func(*backend.Info) {}}
	r := protectHarness(t, newProtectionStore(), subsystemOf(testSub, dev))
	h := r.connectHost(2)
	r.ok(h.io[1], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // opens the channel
	held.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
	before := r.send(h.io[1], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the write", func() bool { return held.Held() == 1 })
	protect := r.send(h.admin, protectCommand(1, nvme.WriteProtect))
	ch := r.raw[0].channel(r.target.find(testSub).Namespaces.Load().Get(1))
	r.until("commands wait", func() bool { return protect.Done || quiesced(ch) })
	r.status(h.admin, protectCommand(1, nvme.NoWriteProtect), nvme.CommandInterrupted)
	testutil.MustTrue(t, !protect.Done, "protected while the device has a write")
	held.Release()
	r.until("it is protected", func() bool { return protect.Done })
	testutil.True(t, protect.CQE.Status().OK() && before.Done && before.CQE.Status().OK(),
		"protection %v; write %v, %v", protect.CQE.Status(), before.Done, before.CQE.Status())
	l := dev.take()
	if n := len(l); n == 0 || l[n-1].Op != backend.OpFlush {
		t.Errorf("the device got %v, and no flush at the end", l)
	}
	h.protected(1, nvme.WriteProtect)
}

// TestWriteProtectionEnds: a host that leaves while its command waits leaves nothing behind.
func TestWriteProtectionEnds(t *testing.T) {
	held := faultyDevice(t, 1<<20, 512)
	store := newProtectionStore()
	r := protectHarness(t, store, subsystemOf(testSub, held))
	h, other := r.connectHost(0), r.connectHost(1)
	r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	held.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
	write := r.send(other.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the write", func() bool { return held.Held() == 1 })
	r.send(h.admin, protectCommand(1, nvme.WriteProtect))
	r.w.Settle()
	h.hangUp()
	held.Release()
	r.until("the controller has ended", func() bool { return len(r.target.Controllers()) == 1 })
	if !write.Done || !store.Protected("", 1) {
		t.Errorf("write %v, protected %v", write.Done, store.Protected("", 1))
	}
}

// TestWriteProtectionLost: a host that loses the subsystem, or the namespace, while its command
// waits protects nothing any more.
func TestWriteProtectionLost(t *testing.T) {
	for name, lose := range map[string]func(r *harness) error{
		"subsystem": func(r *harness) error {
			_, err := r.target.UpdateSubsystem(subsystems.Config{
				NQN: testSub, Hosts: []string{otherHost},
			})
			return err
		},
		"namespace": func(r *harness) error {
			_, err := r.target.RemoveNamespace(testSub, 1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			held := faultyDevice(t, 1<<20, 512)
			store := newProtectionStore()
			r := protectHarness(t, store, subsystemOf(testSub, held))
			h, other := r.connectHost(0), r.connectHost(1, asOther)
			r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			held.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
			r.send(other.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
			r.until("the device has the write", func() bool { return held.Held() == 1 })
			c := r.send(h.admin, protectCommand(1, nvme.WriteProtect))
			ns := r.target.find(testSub).Namespaces.Load().Get(1)
			ch := r.raw[1].channel(ns)
			r.until("commands wait", func() bool { return quiesced(ch) })
			r.must(lose(r))
			held.Release()
			r.during(func() error {
				_ = ns.Resume() // waits for the change in progress
				return nil
			})
			testutil.True(t, !store.Protected("", 1), "the namespace is write protected")
			if name == "namespace" {
				r.until("the command completes", func() bool { return c.Done })
				testutil.Equal(t, c.CQE.Status()&^nvme.More, inactiveNamespace, "")
			}
		})
	}
}
