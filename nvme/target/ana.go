package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
)

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

// anaRefuses is the status of an I/O command if the state of its namespace does not allow it.
func (c *cmd) anaRefuses(a *ana.States) nvme.Status {
	if ns := c.namespace(); ns != nil {
		return a.Of(ns.Attributes().ANAGroup).Status()
	}
	return nvme.Success
}
