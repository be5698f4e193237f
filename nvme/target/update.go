package target

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
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
// If swap is not nil, it exchanges the device, without an error for hosts. Their commands wait,
// each as long as its timeout allows; the IOs at the device complete; its channels are closed. Then
// swap is called, once and on the same goroutine, with the present device, nil if there is none. It
// may close that device, and returns the device to go on with. This needs the same block size, and
// belongs to the namespace from then on, even if UpdateNamespace returns an error. With an error
// swap returns the old device, or that one opened anew, and nothing else changes. If it returns no
// device, the namespace is not ready, as if its storage were offline, until another exchange.
// Commands that waited and do not fit the new device fail as if they had been sent later.
//
// If the old device does not finish its I/O in time, or hosts do not end their zero-copy reads and
// writes, swap is not called and everything is as it was. Changes of one namespace take turns, so
// swap makes none. Of a namespace that is removed meanwhile, the device is in use until the
// removal's gone is closed.
func (t *Target) UpdateNamespace(nqn string, cfg namespaces.Config,
	swap func(old backend.Device) (backend.Device, error),
) error {
	return t.changeNamespace(nqn, cfg.NSID, func(ns *namespaces.Namespace) error {
		return ns.Update(cfg, swap)
	})
}
