package target

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/loop"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestCompletionsAreClean: DW0, DW1 and what is reserved of a completion are zero unless the command has a result, whatever the last
// completion in the same place was (CVE-2024-41079).
func TestCompletionsAreClean(t *testing.T) {
	r := newRig(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1)
	fabrics := func(typ int) *loop.Command {
		c := command(nvme.FabricsOpcode, 0, nil)
		c.SQE[4] = byte(typ)
		return c
	}
	check := func(q *loop.Queue, what string, c *loop.Command, result uint64) {
		t.Helper()
		if q == h.admin {
			r.ok(q, propertyGetCommand(nvme.PropertyCAP)) // eight bytes in the same place
		}
		r.do(q, c)
		if got := c.CQE.Result(); got != result || c.CQE.ReservedSet() {
			t.Errorf("%s: completion % x, want the result %#x and nothing in what is reserved", what, c.CQE, result)
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
	check(h.admin, "a property of 4 bytes", propertyGetCommand(nvme.PropertyVS), uint64(nvme.Version20))
	check(h.admin, "Property Set", propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)), 0)
	check(h.admin, "Identify", identifyCommand(nvme.CNSController, 0), 0)
	check(h.admin, "Get Log Page", logCommand(nvme.LogSMART, 512, 0), 0)
	check(h.admin, "Set Features", setFeature(nvme.FeatureWriteAtomicity, 1), 0)
	check(h.admin, "Get Features", getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureCapabilities, 0), 4)
	check(h.admin, "Get Features with data", getFeatureInto(nvme.FeatureHostIdentifier, 1, make([]byte, 16)), 0)
	check(h.io[0], "Write", rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)), 0)
	check(h.io[0], "Read", rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), 0)
	check(h.io[0], "Flush", command(nvme.NVMFlush, 1, nil), 0)
	check(h.io[0], "Dataset Management", dsm(1, true, [2]uint64{0, 1}), 0)
}

func getFeatureInto(fid nvme.FID, v uint32, data []byte) *loop.Command {
	c := getFeature(fid, nvme.FeatureCurrent, v)
	c.Data = data
	return c
}

// TestLogsInDwords: every log page can be read in pieces, down to NUMD 0, one dword, and the pieces are those of the whole (M07).
func TestLogsInDwords(t *testing.T) {
	r := newRig(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	for lid, size := range map[nvme.LID]int{
		nvme.LogSupportedPages: nvme.SupportedPagesSize, nvme.LogError: 64 * errorLogSize, nvme.LogFirmwareSlot: nvme.FirmwareLogSize,
		nvme.LogChangedNamespaces: 4096, nvme.LogEffects: 4096, nvme.LogFeatureEffects: nvme.FeatureEffectsSize,
	} {
		t.Run(fmt.Sprintf("log %02Xh", uint8(lid)), func(t *testing.T) {
			whole := r.ok(h.admin, logCommand(lid, size, 0)).Data
			for _, n := range []int{4, 12, 1000} {
				var got []byte
				for off := 0; off < size; off += n {
					got = append(got, r.ok(h.admin, logCommand(lid, min(n, size-off), uint64(off))).Data...)
				}
				if !bytes.Equal(got, whole) {
					t.Errorf("in pieces of %d bytes it is another log", n)
				}
			}
			r.status(h.admin, logCommand(lid, 4, uint64(size)), invalidField)
		})
	}
}

// TestFeatureOfNoNamespace: a feature of a namespace that does not exist has no value; those of the controller are for all.
func TestFeatureOfNoNamespace(t *testing.T) {
	r := newRig(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	get := func(fid nvme.FID, nsid uint32) *loop.Command {
		c := getFeature(fid, nvme.FeatureCurrent, 0)
		c.SQE.SetNSID(nsid)
		return c
	}
	for nsid, want := range map[uint32]nvme.Status{
		0: nvme.Success, 1: nvme.Success, nvme.NSIDAll: nvme.Success,
		2: invalidNamespace, MaxNSID: invalidNamespace, MaxNSID + 1: invalidNamespace, nvme.NSIDAll - 1: invalidNamespace,
	} {
		t.Run(fmt.Sprintf("NSID %#x", nsid), func(t *testing.T) {
			r.status(h.admin, get(nvme.FeatureErrorRecovery, nsid), want)
			r.status(h.admin, get(nvme.FeatureNumberOfQueues, nsid), nvme.Success)
		})
	}
}
