package target

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

const (
	// closeDeadline is how long Close waits for reactors and devices.
	closeDeadline = 30 * time.Second
	// drainDeadline is how long commands wait at most for a device to complete others, so that it
	// can be exchanged. Linux hosts give up a connection if a command takes 30 s.
	drainDeadline = 10 * time.Second
)

var (
	errClosed = errors.New("the target is closed")

	errPortRemoved = errors.New("the listener was removed, or is drained")
)

// RemoveSubsystem disconnects the hosts of a subsystem, and admits no more. If it is removed for
// good, hosts that connect again are told so, see Changing. gone is closed when no reactor and no
// device works for it any more, and its devices may be closed: never if one of them does not finish
// its I/O.
func (t *Target) RemoveSubsystem(nqn string, forGood bool) (gone <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := (*t.table.Load())[nqn]
	if s == nil {
		return nil, fmt.Errorf("subsystem %q does not exist", nqn)
	}
	t.final.SetGone(nqn, forGood && s.Settings.Load().Security == 0)
	return t.removeSubsystem(s), nil
}

// removeSubsystem removes a subsystem as RemoveSubsystem describes. The caller holds t.mu.
func (t *Target) removeSubsystem(s *subsystem) (gone <-chan struct{}) {
	t.setTable(func(m map[string]*subsystem) { delete(m, s.NQN) })
	t.discoveryChanged()
	s.teardown(errors.New("the subsystem was removed"))
	return t.retire(s.Namespaces.Drop(func(*namespaces.Namespace) bool { return true }))
}

// RemoveNamespace removes a namespace and notifies connected hosts. Commands for it that hosts have
// sent before complete. gone is as for RemoveSubsystem.
func (t *Target) RemoveNamespace(nqn string, nsid uint32) (gone <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ns, err := t.namespace(nqn, nsid)
	if err != nil {
		return nil, err
	}
	s := ns.Owner.(*subsystem)
	list := s.Namespaces.Drop(func(o *namespaces.Namespace) bool { return o == ns })
	s.Tell(ns, namespaces.Changed, ns.Attributes().Visible)
	return t.retire(list), nil
}

// namespace looks up a namespace.
func (t *Target) namespace(nqn string, nsid uint32) (*namespaces.Namespace, error) {
	if s := (*t.table.Load())[nqn]; s != nil {
		if ns := s.Namespaces.Load().Get(nsid); ns != nil {
			return ns, nil
		}
	}
	return nil, fmt.Errorf("subsystem %q has no namespace %d", nqn, nsid)
}

// retire closes the channels of namespaces that no table lists any more, on every reactor that has
// one. The caller holds t.mu.
func (t *Target) retire(list []*namespaces.Namespace) (gone <-chan struct{}) {
	var channels sync.WaitGroup
	for _, ns := range list {
		for _, c := range ns.Retire() {
			channels.Add(1)
			ch := c.User.(*channel)
			ch.h.post(func() { ch.drop(channels.Done) })
		}
	}
	done := make(chan struct{})
	t.retiring.Go(func() {
		for _, ns := range list {
			ns.Stop()
		}
		channels.Wait()
		t.retired(list)
		close(done)
	})
	return done
}

// retired is called when nothing uses the namespaces any more.
func (t *Target) retired(list []*namespaces.Namespace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.freeSlots(list)
	for _, ns := range list {
		ns.Owner.(*subsystem).Namespaces.Retired(ns)
	}
}

// ForgetNamespace forgets the promises of a namespace that was removed and does not come back.
func (t *Target) ForgetNamespace(nqn string, nsid uint32) {
	reserved, err := t.shared.Forget(observe.Namespace{SubNQN: nqn, NSID: nsid},
		t.shared.HostLog.Peer(netip.AddrPort{}))
	if reserved {
		t.log.Warn("a reservation has ended with its namespace", "subsystem", nqn, "nsid", nsid)
	}
	if err != nil {
		t.log.Warn("marks of uncorrectable blocks remain stored after the end of their namespace",
			"subsystem", nqn, "nsid", nsid, "err", err)
	}
}

// Reservations returns the reservations of a namespace, which need not exist yet.
func (t *Target) Reservations(nqn string, nsid uint32) *reservation.Namespace {
	return t.shared.ReservationsOf(observe.Namespace{SubNQN: nqn, NSID: nsid})
}

// UntilRestart reports whether a host has write protected a namespace until the target restarts.
func (t *Target) UntilRestart(nqn string, nsid uint32) bool {
	return t.shared.UntilRestart(observe.Namespace{SubNQN: nqn, NSID: nsid})
}

// RestorePromises adopts the promises of a namespace that the stores have from another target,
// which does not use them any more, while the storage is offline. It returns when earlier changes
// of reservations and uncorrectable blocks have ended.
func (t *Target) RestorePromises(nqn string, nsid uint32, r *reservation.State, m *marks.Kept) {
	t.shared.Restore(observe.Namespace{SubNQN: nqn, NSID: nsid}, r, m)
}

// Close disconnects every host and closes every channel, also the channels of namespaces removed
// before. Reactors that have served I/O must still be running. The devices may be closed if it
// returns nil. An error names the namespaces with devices that may not be closed, because they do
// not finish their I/O.
func (t *Target) Close() error {
	t.mu.Lock()
	t.closed.Store(true)
	for _, h := range t.handlers {
		h.post(func() { h.disconnect(errClosed, func(*session) bool { return true }) })
	}
	for _, s := range *t.table.Load() {
		t.removeSubsystem(s)
	}
	t.mu.Unlock()
	done := make(chan struct{})
	go func() {
		t.retiring.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(t.common.CloseDeadline):
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var busy []string
	for _, ns := range t.slots {
		if ns != nil {
			busy = append(busy, fmt.Sprintf("namespace %d of %q", ns.ID.NSID, ns.ID.SubNQN))
		}
	}
	return fmt.Errorf("%s: after %v %w", strings.Join(busy, ", "), t.common.CloseDeadline,
		namespaces.ErrBusy)
}
