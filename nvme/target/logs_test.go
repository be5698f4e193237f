package target

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestLogsInDwords: every log page can be read in pieces, down to NUMD 0, one dword. The pieces are
// equal to the page read at once (M07).
func TestLogsInDwords(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	c := r.target.find(testSub).lookup(h.cntlid)
	for i := range 256 {
		lid := nvme.LID(i)
		p := c.LogPage(lid)
		if p == nil || p.Size == 0 || lid == nvme.LogSMART { // which counts such commands
			continue
		}
		size := int(p.Size)
		r.run(fmt.Sprintf("log %02Xh", uint8(lid)), func(t *testing.T) {
			whole := r.ok(h.admin, logCommand(lid, size, 0)).Data
			for _, n := range []int{4, 1000} {
				var got []byte
				for off := 0; off < size; off += n {
					got = append(got,
						r.ok(h.admin, logCommand(lid, min(n, size-off), uint64(off))).Data...)
				}
				testutil.True(t, bytes.Equal(got, whole),
					"pieces of %d bytes differ from the whole", n)
			}
			r.status(h.admin, logCommand(lid, 4, uint64(size)), invalidField)
		})
	}
}

// TestEffectsLogAgrees: log 05h lists exactly the opcodes that are served (I06).
func TestEffectsLogAgrees(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	l, err := nvme.Parse[nvme.EffectsLog](r.ok(h.admin, logCommand(nvme.LogEffects, 4096, 0)).Data)
	testutil.Must(t, err)
	for op := range 256 {
		if nvme.Opcode(op) == nvme.FabricsOpcode {
			continue
		}
		c := r.do(h.io[0], command(nvme.Opcode(op), 0, nil))
		known := c.CQE.Status().Code() != nvme.InvalidOpcode
		if listed := l.IO[op]&nvme.EffectSupported != 0; known != listed {
			t.Errorf("I/O opcode %#x: listed %v, known %v", op, listed, known)
		}
		testutil.True(t, (l.Admin[op] != 0) == (adminOps[op].execute != nil),
			"admin opcode %#x: %#x", op, l.Admin[op])
	}
	testutil.True(t, l.IO[nvme.NVMWrite]&nvme.EffectContentChange != 0,
		"Write does not change content")
}
