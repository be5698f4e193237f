package rdma

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// ioRound sends n commands, turns the loop and takes the responses.
func (m *manual) ioRound(sqes []nvme.SQE) {
	for i := range sqes {
		m.host.send(&sqes[i], nil)
	}
	m.turn()
	m.turn()
	m.turn()
	for range sqes {
		m.host.response()
	}
}

func TestNothingIsAllocatedPerCommand(t *testing.T) {
	for name, iwarp := range map[string]bool{"roce": false, "iwarp": true} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, verbstest.Options{IWARP: iwarp}, Config{}, ioParam(32))
			m.q.p.dev.attr.WritesFirst = !iwarp
			var sqes []nvme.SQE
			for i := range 32 {
				op := []nvme.Opcode{opRead, opWrite, opZeroCopyRead, opNothing}[i%4]
				s := m.host.keyed(command(op, uint16(i), 0, 4096), i*4096, 4096)
				if op == opWrite && i%8 == 1 {
					s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 0)
					s.SetCDW(12, 0)
				}
				sqes = append(sqes, s)
			}
			m.ioRound(sqes)
			testutil.Equal(t, testutil.AllocsPerRun(50, func() { m.ioRound(sqes) }), 0,
				"allocations in 32 commands")
		})
	}
}
