package target

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// UpdateSubsystem changes everything of the subsystem cfg.NQN but its namespaces, which cfg does
// not list. Existing controllers keep the properties that their hosts know (serial and model,
// queues, transfer size, CNTLID) until the hosts connect again. Hosts that are no longer allowed
// are disconnected, and so are hosts that have come through a listener that no longer serves the
// subsystem. gone is closed when the last of their queues has ended, with the I/O that the storage
// had.
func (t *Target) UpdateSubsystem(cfg SubsystemConfig) (gone <-chan struct{}, err error) {
	cfg.SetDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := (*t.table.Load())[cfg.NQN]
	if s == nil {
		return nil, fmt.Errorf("subsystem %q does not exist", cfg.NQN)
	}
	before := s.settings.Load()
	now := newSettings(cfg, before)
	s.update(now)
	refused := s.enforce()
	if !now.samePlaces(before) {
		t.discoveryChanged()
	}
	if now.limiter != before.limiter {
		relink(t.handlers)
	}
	done := make(chan struct{})
	go func() {
		for _, c := range refused {
			<-c.gone
		}
		close(done)
	}()
	return done, nil
}

// update changes the settings.
func (s *subsystem) update(now *settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings.Store(now)
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
func (t *Target) UpdateNamespace(nqn string, cfg NamespaceConfig,
	swap func(old backend.Device) (backend.Device, error),
) error {
	return t.changeNamespace(nqn, cfg.NSID, func(ns *namespace) error {
		if cfg.ANAGroup > ana.MaxGroups {
			return ns.fail(fmt.Errorf("ANA group %d: 1 to %d are allowed", cfg.ANAGroup,
				ana.MaxGroups))
		}
		if swap == nil {
			next := ns.sub.newAttributes(cfg, ns.cfg.Load().dev)
			next.space = ns.cfg.Load().space
			ns.adopt(next, false)
			return nil
		}
		stopNotify([]*namespace{ns}) // first: it may block
		if err := ns.quiesce(); err != nil {
			ns.startNotify()
			return err
		}
		return ns.swap(cfg, swap)
	})
}

// quiesce makes commands wait until no reactor has a channel to the device.
func (ns *namespace) quiesce() error {
	return ns.quiesceWithin(ns.sub.t.closeDeadline, ns.sub.t.drainDeadline)
}

// quiesceWithin waits for so long at most, for zero-copy reads and writes and then for the device.
func (ns *namespace) quiesceWithin(zeroCopy, io time.Duration) error {
	if ns.paused.Load() {
		return nil
	}
	if !ns.setQuiesce(dispatch.QuiesceZeroCopy, zeroCopy) {
		return fmt.Errorf("hosts still read or write the memory of the device after %v", zeroCopy)
	}
	if !ns.setQuiesce(dispatch.QuiesceIO, io) {
		return fmt.Errorf("after %v %w", io, errBusy)
	}
	return nil
}

// setQuiesce keeps commands from the device as far as l, and waits until every reactor has reached
// that. It returns false if that takes longer than wait.
func (ns *namespace) setQuiesce(l dispatch.Level, wait time.Duration) bool {
	done := ns.Quiesce(l)
	select {
	case <-done:
		return true
	case <-time.After(wait):
	}
	select {
	case <-done: // both, for instance if no reactor has a channel
		return true
	default:
		return false
	}
}

// swap exchanges the device while no reactor has a channel to it.
func (ns *namespace) swap(cfg NamespaceConfig,
	swap func(backend.Device) (backend.Device, error),
) error {
	before, info := ns.cfg.Load(), ns.geo.Load().info
	between := *before
	between.dev = &absent{info} // not the device, which may be closed any moment
	ns.setAttributes(&between, false)
	old := before.dev
	if _, none := old.(*absent); none {
		old = nil
	}
	dev, err := swap(old)
	there := dev != nil
	if !there {
		info.Offline = true
		dev = &absent{info}
	}
	if there && dev != old {
		ns.marks.Attach(dev)
	}
	next := ns.sub.newAttributes(cfg, dev)
	if err != nil {
		kept := *before
		kept.dev, kept.space = dev, next.space
		next = &kept
	}
	ns.adopt(next, there && dev != old)
	if err == nil {
		err = ns.usable(dev)
	}
	return err
}

// adopt gives the namespace attributes and notifies hosts of the changes they see. opened: its
// device was opened since, and earlier losses are forgotten.
func (ns *namespace) adopt(next *attributes, opened bool) {
	before := ns.cfg.Load()
	next.drive.Continue(before.drive)
	next.limiter = qos.NewLimiter(next.limits, before.limiter)
	ns.setAttributes(next, opened)
	if next.limiter != before.limiter {
		for _, c := range ns.Channels() {
			h := c.User.(*channel).h
			h.post(h.relink)
		}
	}
	ns.startNotify()
	if next.anaGroup != before.anaGroup {
		ns.sub.each(func(c *controller) {
			if next.visible(c.hostNQN) && before.visible(c.hostNQN) { // else: see changedSince
				c.h.post(func() { c.gatherANA(c.anaChanged) })
			}
		})
	}
	ns.changedSince(before)
}

func (ns *namespace) setAttributes(a *attributes, opened bool) {
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	ns.cfg.Store(a)
	if opened {
		ns.state.degraded = false
	}
}

// usable says why hosts cannot use a device in place of the one that they know.
func (ns *namespace) usable(dev backend.Device) error {
	g, err := newGeometry(dev.Info(), false)
	if shift := ns.geo.Load().shift; err == nil && g.shift != shift {
		err = backend.WithHint(fmt.Errorf("the block size cannot change from %d to %d while hosts "+
			"use the namespace", 1<<shift, 1<<g.shift), "Remove the namespace and add it again.")
	}
	return err
}

// absent is the device of a namespace that has none.
type absent struct{ info backend.Info }

func (d *absent) Info() backend.Info { return d.info }

func (d *absent) OpenChannel(backend.Reactor) (backend.Channel, error) {
	return nil, backend.ErrOffline
}

func (d *absent) Close() error { return nil }
