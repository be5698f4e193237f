package target

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// UpdateSubsystem changes everything of the subsystem cfg.NQN but its namespaces, which cfg does
// not list. Existing controllers keep the properties that their hosts know (serial and model,
// queues, transfer size, CNTLID) until the hosts connect again. Hosts that are no longer allowed
// are disconnected, and so are hosts that have come through a listener that no longer serves the
// subsystem. gone is closed when the last of their queues has ended, with the I/O that the storage
// had.
func (t *Target) UpdateSubsystem(cfg subsystems.Config) (gone <-chan struct{}, err error) {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := (*t.table.Load())[cfg.NQN]
	if s == nil {
		return nil, fmt.Errorf("subsystem %q does not exist", cfg.NQN)
	}
	before := s.Settings.Load()
	now := subsystems.NewSettings(cfg, before)
	s.Update(now)
	refused := s.enforce()
	if !now.SamePlaces(before) {
		t.discoveryChanged()
	}
	if now.Limiter != before.Limiter {
		relink(t.handlers)
	}
	done := make(chan struct{})
	go func() {
		for _, c := range refused {
			<-c.Gone
		}
		close(done)
	}()
	return done, nil
}

// UpdateNamespace changes the namespace cfg.NSID while hosts use it. It takes write protection,
// timeout, limits, hosts, drive and identifiers from cfg, and ignores the Device of cfg. Hosts get
// an event if they see a difference; Linux hosts drop a namespace when its identifiers change. When
// UpdateNamespace returns, the device gets nothing any more that the namespace would now refuse.
//
// swap, unless it is nil, exchanges the device without an error for hosts. Their commands wait,
// each as long as its timeout allows, the IOs at the device complete, it is flushed, and its
// channels are closed. Then swap is called once, on the same goroutine, with the current device,
// nil if there is none. It may close that device, and returns the next one, which must have the
// same block size and belongs to the namespace even if UpdateNamespace returns an error. With an
// error swap returns the old device, or that one opened again, and nothing else changes. Without a
// device the namespace is not ready until another exchange, as if its storage were offline.
// Commands that have waited and do not fit the new device fail as if they had been sent later.
//
// If the old device does not finish its I/O in time, or fails to flush, or hosts do not end their
// zero-copy reads and writes, swap is not called and nothing changes. Changes of one namespace take
// turns, so swap makes none. If the namespace is removed meanwhile, its device is in use until the
// removal's gone is closed.
func (t *Target) UpdateNamespace(nqn string, cfg namespaces.Config,
	swap func(old backend.Device) (backend.Device, error),
) error {
	return t.changeNamespace(nqn, cfg.NSID, func(ns *namespaces.Namespace) error {
		return ns.Update(cfg, swap)
	})
}

// Degraded reports whether a namespace may have lost accepted writes.
func (t *Target) Degraded(nqn string, nsid uint32) bool {
	ns, err := t.namespace(nqn, nsid)
	return err == nil && ns.Geometry().Info.Degraded
}

// DegradeNamespace write protects a namespace whose storage may have lost accepted writes, for a
// caller that has opened that storage again without a decision of the operator.
func (t *Target) DegradeNamespace(nqn string, nsid uint32) error {
	return t.changeNamespace(nqn, nsid, (*namespaces.Namespace).Degrade)
}

// SetHostLimits sets the limits of a host for all subsystems together, whether it is connected or
// not; without any the host has none. Commands that wait look at them at once.
func (t *Target) SetHostLimits(nqn string, l qos.Limits) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared.Hosts.SetLimits(nqn, l) {
		relink(t.handlers)
	}
}

// PauseNamespace makes commands for a namespace wait, each as long as its timeout allows, until
// ResumeNamespace. When it returns, the device has no I/O and no channel, so that its storage can
// be saved as it is. If the device does not finish its I/O in time, or does not flush, or hosts do
// not end their zero-copy reads and writes, PauseNamespace fails and the namespace is as before. A
// namespace that is paused already stays so; UpdateNamespace does not end it, a removal does.
func (t *Target) PauseNamespace(nqn string, nsid uint32) error {
	return t.changeNamespace(nqn, nsid, (*namespaces.Namespace).Pause)
}

// ResumeNamespace ends the pause of a namespace, if it is paused.
func (t *Target) ResumeNamespace(nqn string, nsid uint32) error {
	return t.changeNamespace(nqn, nsid, (*namespaces.Namespace).Resume)
}

// PauseAll pauses all namespaces, see namespaces.PauseAll.
func (t *Target) PauseAll(within time.Duration) (release func(), err error) {
	var list []*namespaces.Namespace
	for _, s := range *t.table.Load() {
		list = append(list, s.Namespaces.Load().List...)
	}
	return namespaces.PauseAll(list, within)
}

// changeNamespace calls fn for a namespace.
func (t *Target) changeNamespace(nqn string, nsid uint32,
	fn func(*namespaces.Namespace) error,
) error {
	ns, err := t.namespace(nqn, nsid)
	if err != nil {
		return err
	}
	return fn(ns)
}

// SetANAStates sets the states of the groups of a port. Groups that are not named are optimized.
// Hosts with namespaces in groups that change are notified. Commands that they have sent before
// complete. A controller keeps the state persistent loss as long as it exists (Base section
// 8.1.1.7): where that ends, the hosts are disconnected.
func (t *Target) SetANAStates(port uint16, states map[uint32]nvme.ANAState) error {
	next, err := ana.NewStates(states)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.ports.State(port).ANA.Swap(next)
	if before.Equal(next) {
		return nil
	}
	for _, s := range *t.table.Load() {
		s.ANAChanged(port, before, next)
	}
	return nil
}
