package target

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// Namespace write protection (FID 84h, Base section 5.1.25.1.31) is the hosts' own, besides
// read_only of the configuration, which no host can end. The power cycle of this target is its
// restart; nothing that a file of ours says is permanent, so that state is not offered.

// protectionOf is the state that a namespace begins with. The caller holds t.mu.
func (t *Target) protectionOf(n observe.Namespace) nvme.WriteProtection {
	switch {
	case t.shared.Protection == nil:
	case t.untilRestart[n]:
		return nvme.WriteProtectUntilPowerCycle
	case t.shared.Protection.Protected(n.SubNQN, n.NSID):
		return nvme.WriteProtect
	}
	return nvme.NoWriteProtect
}

// setWriteProtection changes the state of one namespace. Before the command completes, the device
// has finished every write that it had, and has none in a volatile cache.
func setWriteProtection(h *Handler, cm *cmd, list []*namespaces.Namespace, v uint32) {
	c, to := cm.s.ctrl, nvme.WriteProtection(v&7)
	switch {
	case len(list) != 1 || cm.req.SQE.NSID() == nvme.NSIDAll:
		h.finish(cm, 0, controllers.NoNamespace(cm.req.SQE.NSID())) // one at a time
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
		st := protect(c, ns, to, log)
		h.post(func() {
			c.protecting = false
			if !st.OK() || to == nvme.NoWriteProtect {
				h.finish(cm, 0, st)
				return
			}
			log.Info("a host has write protected a namespace", "subsystem", c.sub.NQN,
				"nsid", ns.ID.NSID, "host", c.HostNQN)
			flushThose(h, cm, []*namespaces.Namespace{ns})
		})
	}()
}

// protect changes the state, unless the host of c may no longer use the namespace. It may block for
// the deadlines of changes.
func protect(c *controller, ns *namespaces.Namespace, to nvme.WriteProtection,
	log ratelog.Peer,
) nvme.Status {
	t := c.t
	err := ns.Protect(to, func() error {
		if !c.mayChange(ns) {
			return errHidden
		}
		err := t.shared.Protection.SetProtected(ns.ID.SubNQN, ns.ID.NSID, to == nvme.WriteProtect)
		if err == nil && to == nvme.WriteProtectUntilPowerCycle {
			t.mu.Lock()
			t.untilRestart[ns.ID] = true
			t.mu.Unlock()
		}
		return err
	})
	switch {
	case err == nil:
		return nvme.Success
	case errors.Is(err, namespaces.ErrNotChangeable):
		return nvme.FeatureNotChangeable | nvme.DNR
	case !c.mayChange(ns): // it was removed as well, for instance
		return inactiveNamespace
	}
	log.Warn("a host cannot change the write protection of a namespace", "subsystem",
		ns.ID.SubNQN, "nsid", ns.ID.NSID, "err", err)
	return nvme.InternalError
}
