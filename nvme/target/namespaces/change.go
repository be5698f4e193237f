package namespaces

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

var (
	// ErrBusy is the error of a change that has to wait for its device for too long.
	ErrBusy = errors.New("the device does not finish its I/O")
	// ErrNotChangeable is the error of Protect for a state that cannot be changed.
	ErrNotChangeable = errors.New("the write protection cannot be changed")
)

// change calls fn, unless the namespace was removed. Changes take turns. Commands that have waited
// for the change go on afterwards, unless the namespace is paused.
func (ns *Namespace) change(fn func() error) error {
	ns.updating.Lock()
	defer ns.updating.Unlock()
	if ns.Retired() {
		return ns.fail(errors.New("it was removed"))
	}
	err := fn()
	ns.proceed()
	if err != nil {
		return ns.fail(err)
	}
	return nil
}

// quiesce makes commands wait until no reactor has a channel to the device. With flush, completed
// writes are durable then, because no later flush reaches this device.
func (ns *Namespace) quiesce(flush bool) error {
	return ns.quiesceWithin(ns.common.CloseDeadline, ns.common.DrainDeadline, flush)
}

// quiesceWithin is quiesce with limits: for the wait for zero-copy reads and writes, and for the
// wait for the device after it.
func (ns *Namespace) quiesceWithin(zeroCopy, io time.Duration, flush bool) error {
	if ns.paused.Load() {
		return nil
	}
	flush = flush && ns.mayLose()
	err := ns.setQuiesce(dispatch.QuiesceZeroCopy, flush, zeroCopy)
	switch {
	case err == nil, errors.Is(err, backend.ErrOffline): // hosts cannot use it; the device may work
		err = ns.setQuiesce(dispatch.QuiesceIO, flush, io)
	case !flush:
		err = fmt.Errorf("hosts still read or write the memory of the device after %v", zeroCopy)
	}
	if errors.Is(err, backend.ErrDegraded) {
		ns.degrade(err)
	}
	return err
}

// mayLose reports whether a flush that fails would show that accepted writes are lost. Hosts know
// it if they are lost already, or if the device is offline.
func (ns *Namespace) mayLose() bool {
	info := ns.Device().Info()
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	return info.VolatileCache && !info.Offline && !ns.state.degraded
}

// setQuiesce keeps commands from the device as far as l, and waits until every reactor has reached
// that. It returns the error of a flush, or ErrBusy if it takes longer than wait.
func (ns *Namespace) setQuiesce(l dispatch.Level, flush bool, wait time.Duration) error {
	done := ns.Quiesce(l, flush)
	select {
	case err := <-done:
		return err
	case <-time.After(wait):
	}
	select {
	case err := <-done: // both, for instance if no reactor has a channel
		return err
	default:
		return fmt.Errorf("after %v %w", wait, ErrBusy)
	}
}

// proceed undoes quiesce, unless the namespace is paused.
func (ns *Namespace) proceed() {
	if !ns.paused.Load() {
		_ = ns.setQuiesce(dispatch.QuiesceNothing, false, ns.common.DrainDeadline)
	}
}

// Pause makes commands wait until Resume, see Target.PauseNamespace.
func (ns *Namespace) Pause() error {
	return ns.change(func() error {
		if err := ns.quiesce(true); err != nil {
			return err
		}
		ns.paused.Store(true)
		return nil
	})
}

// pauseUntil pauses a namespace unless it is paused already, was removed, or is being changed. It
// waits for the device until end.
func (ns *Namespace) pauseUntil(end time.Time) (paused bool, err error) {
	if !ns.updating.TryLock() {
		return false, ns.fail(errors.New("it is being changed"))
	}
	defer ns.updating.Unlock()
	if ns.Retired() || ns.paused.Load() {
		return false, nil
	}
	left := max(time.Until(end), 0)
	if err := ns.quiesceWithin(left, left, false); err != nil {
		ns.proceed()
		return false, ns.fail(err)
	}
	ns.paused.Store(true)
	return true, nil
}

// PausedAtOnce bounds PauseAll: each namespace takes a goroutine, and a post to every reactor.
const PausedAtOnce = 256

// PauseAll pauses namespaces and waits for their devices no longer than within. It leaves alone the
// ones that are paused already. release ends the pauses. After an error it has paused none.
func PauseAll(list []*Namespace, within time.Duration) (release func(), err error) {
	end := time.Now().Add(within)
	paused := make([]bool, len(list))
	errs := make([]error, len(list))
	each := func(do func(i int, ns *Namespace)) {
		var wg sync.WaitGroup
		places := make(chan struct{}, PausedAtOnce)
		for i, ns := range list {
			places <- struct{}{}
			wg.Go(func() {
				do(i, ns)
				<-places
			})
		}
		wg.Wait()
	}
	each(func(i int, ns *Namespace) { paused[i], errs[i] = ns.pauseUntil(end) })
	release = func() {
		each(func(i int, ns *Namespace) {
			if paused[i] {
				_ = ns.Resume() // fails only if it was removed
			}
		})
	}
	if err := errors.Join(errs...); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// Degrade degrades a namespace for losses of which its device does not know. Since this is a
// change, channels check their IOs from then on, and refuse flushes.
func (ns *Namespace) Degrade() error {
	return ns.change(func() error {
		ns.degrade(backend.ErrDegraded)
		return nil
	})
}

// Resume ends a pause.
func (ns *Namespace) Resume() error {
	return ns.change(func() error {
		ns.paused.Store(false)
		return nil
	})
}

// Stop ends changes and notifications of a namespace that is retired. It waits for the ones that go
// on.
func (ns *Namespace) Stop() {
	ns.updating.Lock()
	defer ns.updating.Unlock()
	ns.StopNotify()
	if ns.paused.CompareAndSwap(true, false) {
		ns.proceed()
	}
}

// Protection is the state of the write protection that hosts see.
func (ns *Namespace) Protection() nvme.WriteProtection {
	p := nvme.WriteProtection(ns.Protected.Load())
	if p == nvme.NoWriteProtect && ns.cfg.Load().ReadOnly {
		return nvme.WriteProtect
	}
	return p
}

// Protect changes the write protection by hosts, unless allowed returns an error. store keeps a
// state, for which commands do not wait: a cluster may stall. Then recall changes Protected to what
// is kept, while no reactor has a channel to the device if protection begins. After an error the
// state before is kept again.
func (ns *Namespace) Protect(to nvme.WriteProtection, allowed func() error,
	store func(nvme.WriteProtection) error, recall func(nvme.WriteProtection),
) error {
	ns.Protected.Changing.Lock()
	defer ns.Protected.Changing.Unlock()
	now := ns.Protection()
	if ns.cfg.Load().ReadOnly || now == nvme.WriteProtectUntilPowerCycle && to != now {
		return ns.fail(ErrNotChangeable)
	}
	err := allowed()
	if err == nil {
		err = store(to)
	}
	if err != nil {
		return ns.fail(err)
	}
	adopt := func(is nvme.WriteProtection) {
		recall(is)
		ns.update(func(*state) {})
	}
	err = ns.change(func() error {
		if to != nvme.NoWriteProtect && min(now, ns.Protection()) == nvme.NoWriteProtect {
			if err := ns.quiesce(false); err != nil {
				return err
			}
		}
		if err := allowed(); err != nil {
			return err
		}
		adopt(to)
		if is := nvme.WriteProtection(ns.Protected.Load()); is != to {
			return fmt.Errorf("another target has changed it to %d meanwhile", is)
		}
		return nil
	})
	if err != nil {
		err = errors.Join(err, store(now))
		if !ns.Retired() { // else the next namespace has its promises
			adopt(now) // the storage may have come back with the other state
		}
	}
	return err
}

// Update changes the namespace, see Target.UpdateNamespace.
func (ns *Namespace) Update(cfg Config, swap func(old backend.Device) (backend.Device, error),
) error {
	return ns.change(func() error {
		if err := cfg.check(); err != nil {
			return err
		}
		if swap == nil {
			next := ns.attributes(cfg, ns.Device())
			next.Space = ns.cfg.Load().Space
			ns.adopt(next, false)
			return nil
		}
		ns.StopNotify() // first: it may block
		if err := ns.quiesce(true); err != nil {
			ns.startNotify()
			return err
		}
		return ns.swap(cfg, swap)
	})
}

// swap exchanges the device while no reactor has a channel to it.
func (ns *Namespace) swap(cfg Config, swap func(backend.Device) (backend.Device, error)) error {
	before, info := ns.cfg.Load(), ns.geo.Load().Info
	between := *before
	between.Device = &absent{info} // not the device, which may be closed any moment
	ns.setAttributes(&between, false)
	old := before.Device
	if _, none := old.(*absent); none {
		old = nil
	}
	dev, err := swap(old)
	there := dev != nil
	if !there {
		info.Offline, info.Standby = true, false
		dev = &absent{info}
	}
	if there && dev != old {
		ns.Marks.Attach(dev)
	}
	next := ns.attributes(cfg, dev)
	if err != nil {
		kept := *before
		kept.Device, kept.Space = dev, next.Space
		next = &kept
	}
	ns.adopt(next, err == nil && there && dev != old)
	if err == nil {
		err = ns.usable(dev)
	}
	return err
}

// adopt gives the namespace attributes and notifies hosts of the changes they see. If opened is
// set, its device was opened again, and earlier losses are forgotten.
func (ns *Namespace) adopt(next *Attributes, opened bool) {
	before := ns.cfg.Load()
	next.Drive.Continue(before.Drive)
	next.Limiter = qos.NewLimiter(next.Limits, before.Limiter)
	ns.setAttributes(next, opened)
	if next.Limiter != before.Limiter {
		ns.tell(Relimits, nil)
	}
	ns.startNotify()
	if next.ANAGroup != before.ANAGroup {
		ns.tell(Regroups, func(hostNQN string) bool {
			return next.Visible(hostNQN) && before.Visible(hostNQN) // else: Changed
		})
	}
	other := next.UUID != before.UUID || next.NGUID != before.NGUID || next.EUI64 != before.EUI64
	ns.tell(Changed, func(hostNQN string) bool {
		visible := next.Visible(hostNQN)
		return visible != before.Visible(hostNQN) || visible && other
	})
}

func (ns *Namespace) setAttributes(a *Attributes, opened bool) {
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	ns.cfg.Store(a)
	if opened {
		ns.state.degraded = false
	}
}

// usable returns the reason why hosts cannot use a device in place of the one that they know.
func (ns *Namespace) usable(dev backend.Device) error {
	g, err := newGeometry(dev.Info(), false)
	if shift := ns.geo.Load().Shift; err == nil && g.Shift != shift {
		err = backend.WithHint(fmt.Errorf("the block size cannot change from %d to %d while hosts "+
			"use the namespace", 1<<shift, 1<<g.Shift), "Remove the namespace and add it again.")
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
