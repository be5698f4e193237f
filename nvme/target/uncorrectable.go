package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Write Uncorrectable marks blocks: reads of them fail until they are written (NVM section 3.3.7).
// See package marks.

// prepareWriteUncorrectable checks a Write Uncorrectable command, which transfers nothing. The most
// that it may mark is the most that may be marked in all.
func prepareWriteUncorrectable(c *cmd) nvme.Status {
	_, st := c.extent(backend.OpWriteUncorrectable)
	switch {
	case !st.OK():
		return st
	case c.req.SQE.RW().Flags()&nvme.RWDirective != 0:
		return invalidField // no directives (Base section 8.1.8)
	}
	return c.expect(0)
}

func executeWriteUncorrectable(h *Handler, c *cmd) {
	c.ch.ns.Marks.Begin()
	executeIO(h, c)
}
