package target

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// ProtectionStore keeps through a restart which namespaces hosts have write protected.
type ProtectionStore interface {
	// Protected reports whether a namespace is. AddSubsystem and AddNamespace call it.
	Protected(nqn string, nsid uint32) bool
	// SetProtected keeps that, durably when it returns nil. It may block: no reactor calls it.
	SetProtected(nqn string, nsid uint32, protected bool) error
}

// Namespace write protection (FID 84h, Base section 5.1.25.1.31) is the hosts' own, besides
// read_only of the configuration, which no host can end. The power cycle of this target is its
// restart; nothing that a file of ours says is permanent, so that state is not offered.

// protectionOf is the state that a namespace begins with. The caller holds t.mu.
func (t *Target) protectionOf(nqn string, nsid uint32) nvme.WriteProtection {
	switch {
	case t.options.Protection == nil:
	case t.untilRestart[namespaceName{nqn, nsid}]:
		return nvme.WriteProtectUntilPowerCycle
	case t.options.Protection.Protected(nqn, nsid):
		return nvme.WriteProtect
	}
	return nvme.NoWriteProtect
}

// withProtection: a protection that a restart would end is none.
func withProtection(c *controller) bool { return onIO(c) && c.t.options.Protection != nil }

// writeProtection is the state that Get Features returns.
func writeProtection(ns *namespace) uint32 {
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	if ns.state.protection == nvme.NoWriteProtect && ns.cfg.Load().readOnly {
		return uint32(nvme.WriteProtect)
	}
	return uint32(ns.state.protection)
}

// setWriteProtection changes the state of one namespace. Before the command completes, the device
// has finished every write that it had, and has none in a volatile cache.
func setWriteProtection(h *Handler, cm *cmd, list []*namespace, v uint32) {
	c, to := cm.s.ctrl, nvme.WriteProtection(v&7)
	switch {
	case len(list) != 1 || cm.req.SQE.NSID() == nvme.NSIDAll:
		h.finish(cm, 0, noNamespace(cm.req.SQE.NSID())) // one at a time
		return
	case to >= nvme.PermanentWriteProtect:
		h.finish(cm, 0, invalidField)
		return
	case c.protecting: // the change waits for devices, and one goroutine is enough for that
		h.finish(cm, 0, nvme.CommandInterrupted)
		return
	}
	ns := list[0]
	c.protecting = true
	log := c.peerLog()
	go func() {
		st := ns.protect(c, to, log)
		h.post(func() {
			c.protecting = false
			if !st.OK() || to == nvme.NoWriteProtect {
				h.finish(cm, 0, st)
				return
			}
			log.Info("a host has write protected a namespace", "subsystem", c.sub.nqn,
				"nsid", ns.nsid, "host", c.hostNQN)
			flushThose(h, cm, []*namespace{ns})
		})
	}()
}

var errNotChangeable = errors.New("the write protection cannot be changed")

// protect changes the state while no reactor has a channel to the device, unless the host of c may
// no longer use the namespace. It may block for the deadlines of quiesce.
func (ns *namespace) protect(c *controller, to nvme.WriteProtection, log ratelog.Peer) nvme.Status {
	t := ns.sub.t
	err := t.changeNamespace(ns.sub.nqn, ns.nsid, func(*namespace) error { // maybe a later one
		ns.state.mu.Lock()
		now := ns.state.protection
		ns.state.mu.Unlock()
		if ns.cfg.Load().readOnly || now == nvme.WriteProtectUntilPowerCycle && to != now {
			return errNotChangeable
		}
		if now == nvme.NoWriteProtect && to != now {
			if err := ns.quiesce(); err != nil {
				return err
			}
		}
		if !c.mayChange(ns) {
			return errHidden
		}
		err := t.options.Protection.SetProtected(ns.sub.nqn, ns.nsid, to == nvme.WriteProtect)
		if err != nil {
			return err
		}
		if to == nvme.WriteProtectUntilPowerCycle {
			t.mu.Lock()
			t.untilRestart[namespaceName{ns.sub.nqn, ns.nsid}] = true
			t.mu.Unlock()
		}
		ns.update(func(s *namespaceState) { s.protection = to })
		return nil
	})
	switch {
	case err == nil:
		return nvme.Success
	case errors.Is(err, errNotChangeable):
		return nvme.FeatureNotChangeable | nvme.DNR
	case !c.mayChange(ns): // it was removed as well, for instance
		return inactiveNamespace
	}
	log.Warn("a host cannot change the write protection of a namespace", "subsystem",
		ns.sub.nqn, "nsid", ns.nsid, "err", err)
	return nvme.InternalError
}
