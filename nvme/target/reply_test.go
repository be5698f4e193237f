package target

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestCompletionsAreClean: DW0 and DW1 of a completion are zero unless the command has a result.
// Reserved fields are always zero. The last completion in the same memory has no effect
// (CVE-2024-41079).
func TestCompletionsAreClean(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	fabrics := func(typ int) *fabrictest.Command {
		c := command(nvme.FabricsOpcode, 0, nil)
		c.SQE[4] = byte(typ)
		return c
	}
	check := func(q *fabrictest.Queue, what string, c *fabrictest.Command, result uint64) {
		t.Helper()
		if q == h.admin {
			r.ok(q, propertyGetCommand(nvme.PropertyCAP)) // eight bytes in the same place
		}
		r.do(q, c)
		if got := c.CQE.Result(); got != result || c.CQE.ReservedSet() {
			t.Errorf("%s: completion % x, want the result %#x and zeroes in reserved fields",
				what, c.CQE, result)
		}
	}
	for op := range 256 {
		switch nvme.Opcode(op) {
		case nvme.FabricsOpcode, nvme.AdminAbort, nvme.AdminAsyncEventReq:
			continue
		}
		check(h.admin, fmt.Sprintf("admin opcode %02Xh", op), command(nvme.Opcode(op), 7, nil), 0)
		check(h.io[0], fmt.Sprintf("I/O opcode %02Xh", op), command(nvme.Opcode(op), 7, nil), 0)
	}
	for typ := range 256 {
		check(h.admin, fmt.Sprintf("Fabrics type %02Xh", typ), fabrics(typ), 0)
		if nvme.FabricsType(typ) != nvme.FabricsDisconnect {
			check(h.io[0], fmt.Sprintf("Fabrics type %02Xh on an I/O queue", typ), fabrics(typ), 0)
		}
	}
	check(h.admin, "a property of 4 bytes", propertyGetCommand(nvme.PropertyVS),
		uint64(nvme.Version20))
	check(h.admin, "Property Set", propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)), 0)
	check(h.admin, "Identify", identifyCommand(nvme.CNSController, 0), 0)
	check(h.admin, "Get Log Page", logCommand(nvme.LogSMART, 512, 0), 0)
	check(h.admin, "Set Features", setFeature(nvme.FeatureWriteAtomicity, 1), 0)
	check(h.admin, "Get Features",
		getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureCapabilities, 0), 4)
	check(h.admin, "Get Features with data",
		getFeatureInto(nvme.FeatureHostIdentifier, 1, make([]byte, 16)), 0)
	check(h.io[0], "Write", rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)), 0)
	check(h.io[0], "Read", rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), 0)
	check(h.io[0], "Flush", command(nvme.NVMFlush, 1, nil), 0)
	check(h.io[0], "Dataset Management", dsm(1, true, [2]uint64{0, 1}), 0)
}
