package target

import (
	"bytes"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fused makes a half of a fused pair: FUSE is 1 or 2.
func fused(op nvme.Opcode, fuse uint8, slba uint64, data []byte) *fabrictest.Command {
	c := rw(op, 1, slba, max(1, uint32(len(data)/512)), data)
	c.SQE.SetFlags(psdtSGL<<6 | fuse)
	return c
}

// pairOf makes a fused Compare and Write.
func pairOf(slba uint64, old, data []byte) []*fabrictest.Command {
	return []*fabrictest.Command{
		fused(nvme.NVMCompare, 1, slba, old), fused(nvme.NVMWrite, 2, slba, data),
	}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }
