package controllers

import (
	"errors"
	"sync"

	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// promises has the state of namespaces that hosts rely on, also for namespaces that were removed.
type promises struct {
	mu sync.Mutex
	of map[observe.Namespace]*promise
	// untilRestart has the namespaces that are write protected until the target restarts.
	untilRestart map[observe.Namespace]bool
}

// promise outlives its namespace until Forget.
type promise struct {
	reservations *reservation.Namespace
	marks        *marks.Marks
	protected    *namespaces.Protected
}

// ReservationsOf returns the reservations of a namespace, which need not exist yet.
func (t *Target) ReservationsOf(n observe.Namespace) *reservation.Namespace {
	return t.promise(n).reservations
}

func (t *Target) promise(n observe.Namespace) *promise {
	t.promises.mu.Lock()
	defer t.promises.mu.Unlock()
	p := t.promises.of[n]
	if p == nil {
		p = &promise{
			reservation.New(t.Reservations, n.SubNQN, n.NSID),
			marks.New(t.Uncorrectable, n.SubNQN, n.NSID), new(namespaces.Protected),
		}
		t.promises.of[n] = p
	}
	return p
}

// Recall gives a new namespace its promises.
func (t *Target) Recall(ns *namespaces.Namespace) {
	p := t.promise(ns.ID)
	ns.Reservations, ns.Marks, ns.Protected = p.reservations, p.marks, p.protected
	if p.protected.Changing.TryLock() { // else the store may have a state that will not be in force
		defer p.protected.Changing.Unlock()
		t.recallProtection(ns.ID, p.protected)
	}
}

// recallProtection sets a state of write protection as the store has it.
func (t *Target) recallProtection(n observe.Namespace, to *namespaces.Protected) {
	t.promises.mu.Lock() // also: the last call has the newest
	defer t.promises.mu.Unlock()
	now := nvme.NoWriteProtect
	switch {
	case t.Protection == nil:
	case t.promises.untilRestart[n]:
		now = nvme.WriteProtectUntilPowerCycle
	case t.Protection.Protected(n.SubNQN, n.NSID):
		now = nvme.WriteProtect
	}
	to.Store(uint32(now))
}

// UntilRestart reports whether a host has write protected a namespace until the target restarts.
func (t *Target) UntilRestart(n observe.Namespace) bool {
	t.promises.mu.Lock()
	defer t.promises.mu.Unlock()
	return t.promises.untilRestart[n]
}

// Restore adopts the promises of a namespace that the stores have from another target, which does
// not use them any more, while the storage is offline. It returns when earlier changes of
// reservations and marks have ended.
func (t *Target) Restore(n observe.Namespace, r *reservation.State, m *marks.Kept) {
	p := t.promise(n)
	p.reservations.Restore(r)
	p.marks.Restore(m)
	t.recallProtection(n, p.protected)
}

// Forget forgets the reservations of a namespace that was removed and does not come back, and its
// marks of uncorrectable blocks, also in the stores. It reports whether a reservation has ended.
func (t *Target) Forget(n observe.Namespace, log ratelog.Peer) (ended bool, err error) {
	p := t.promise(n)
	p.protected.Changing.Lock() // the next namespace recalls a state that stays
	defer p.protected.Changing.Unlock()
	t.promises.mu.Lock()
	delete(t.promises.of, n)
	t.promises.mu.Unlock()
	return p.reservations.Forget(log), p.marks.Forget()
}

// ErrHidden is the error for a host that may no longer use a namespace.
var ErrHidden = errors.New("the host may no longer use the namespace")

// isShared reports whether other targets may serve a namespace. Several targets never lose power as
// one, so it cannot be write protected until a power cycle.
func isShared(ns *namespaces.Namespace) bool { return ns.Reservations.Place() != reservation.Here }

// Protect changes the write protection of a namespace, unless the host may no longer change it. It
// may block for the deadlines of changes.
func (c *Controller) Protect(ns *namespaces.Namespace, to nvme.WriteProtection, log ratelog.Peer,
) nvme.Status {
	t := c.Target
	allowed := func() error {
		switch {
		case !c.MayChange(ns):
			return ErrHidden
		case to == nvme.WriteProtectUntilPowerCycle && isShared(ns):
			return namespaces.ErrNotChangeable
		}
		return nil
	}
	err := ns.Protect(to, allowed, func(state nvme.WriteProtection) error {
		return t.Protection.SetProtected(ns.ID.SubNQN, ns.ID.NSID, state == nvme.WriteProtect)
	}, func(state nvme.WriteProtection) {
		if state == nvme.WriteProtectUntilPowerCycle {
			t.promises.mu.Lock()
			t.promises.untilRestart[ns.ID] = true
			t.promises.mu.Unlock()
		}
		t.recallProtection(ns.ID, ns.Protected)
	})
	switch {
	case err == nil:
		return nvme.Success
	case errors.Is(err, namespaces.ErrNotChangeable):
		return nvme.FeatureNotChangeable | nvme.DNR
	case !c.MayChange(ns): // it was removed as well, for instance
		return invalidField
	case ns.Reservations.Elsewhere():
		return nvme.ANAInaccessible
	}
	log.Report(event.NotWriteProtected, "subsystem", ns.ID.SubNQN, "nsid", ns.ID.NSID, "err", err)
	return nvme.InternalError
}
