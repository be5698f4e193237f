package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// commandSetsOf is Identify with CNS 1Ch.
func commandSetsOf(cntlid uint16) *fabrictest.Command {
	c := identifyCommand(nvme.CNSCommandSets, 0)
	c.SQE.Identify().Set(nvme.CNSCommandSets, cntlid, 0)
	return c
}

// TestCommandSets: an I/O controller says in CAP, CNS 1Ch and the descriptors of its namespaces
// that it has the NVM command set, and can be enabled with all of its command sets. A discovery
// controller has only the NVM bit, and CC.CSS 000b (Base sections 3.1.4.1 and 3.1.4.5).
func TestCommandSets(t *testing.T) {
	const all = nvme.CCLinux | nvme.CSSAllIO<<4
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	sets := nvme.CAP(h.property(nvme.PropertyCAP)) & (0xFF << 37)
	if sets != nvme.CAPCSSNVM|nvme.CAPCSSIOSets {
		t.Errorf("CAP.CSS %#x", uint64(sets>>37))
	}
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
	r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(all)))
	h.connectIO(0)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	for _, id := range []uint16{0xFFFF, h.cntlid} {
		b := r.ok(h.admin, commandSetsOf(id)).Data
		if b[0] != 1 || len(b) != 4096 || string(b[1:]) != string(make([]byte, 4095)) {
			t.Errorf("CNS 1Ch: % x", b[:16])
		}
	}
	d := r.connectHost(0, on(nvme.DiscoveryNQN))
	if sets := nvme.CAP(d.property(nvme.PropertyCAP)) & (0xFF << 37); sets != nvme.CAPCSSNVM {
		t.Errorf("CAP.CSS of a discovery controller: %#x", uint64(sets>>37))
	}
	r.ok(d.admin, propertySetCommand(nvme.PropertyCC, 0))
	r.status(d.admin, propertySetCommand(nvme.PropertyCC, uint64(all)), invalidField)
	r.status(d.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCEnable|7<<4)), invalidField)
}
