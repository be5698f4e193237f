package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// I/O controllers have one I/O command set, NVM, and say so in all the ways that hosts ask: another
// one becomes a bit of commandSetCombination, and a CSI of identifyPages, ioOps and log 05h.

// commandSetCombination is the only combination of I/O command sets (CNS 1Ch).
const commandSetCombination = 1 << nvme.CSINVM

// identifyCommandSets makes CNS 1Ch, which is the same for all controllers of a subsystem. FFFFh is
// the one that is asked (Base section 5.1.13.2.19).
func identifyCommandSets(c *controller, sqe *nvme.SQE) admin.Reply {
	id := sqe.Identify().CNTID()
	if id != nvme.CNTLIDDynamic && c.sub.lookup(id) == nil {
		return admin.Refused
	}
	return admin.Reply{Data: nvme.AppendCommandSets(nil, commandSetCombination)}
}

// setCommandSets selects a combination by its index (Base section 5.1.25.1.17).
func setCommandSets(_ *controller, v uint32) (uint32, nvme.Status) {
	if v&0x1FF != 0 {
		return 0, nvme.CommandSetsRejected | nvme.DNR
	}
	return 0, nvme.Success
}
