package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// Namespace write protection (FID 84h, Base section 5.1.25.1.31) is the hosts' own, besides
// read_only of the configuration, which no host can end. The power cycle of this target is its
// restart; nothing that a file of ours says is permanent, so that state is not offered.

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
	log := c.PeerLog()
	go func() {
		st := c.Protect(ns, to, log)
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
