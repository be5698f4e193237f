package target

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// refusalSize is the size in bytes of every namespace of TestIORefusals.
const refusalSize = 4 << 20

// ioRow is a command and the status it must get.
type ioRow struct {
	name string
	c    *fabrictest.Command
	want nvme.Status
}

// TestIORefusals: I/O commands that are refused, with blocks of 512 and 4096 bytes (I01 to I06,
// I11, I12, I16, S08 to S11).
func TestIORefusals(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		t.Run(fmt.Sprint(bs), func(t *testing.T) {
			dev := &recorder{Device: ramDevice(t, refusalSize, bs), info: func(*backend.Info) {}}
			sub := SubsystemConfig{NQN: testSub, AllowAnyHost: true, Namespaces: []NamespaceConfig{
				{NSID: 1, Device: dev},
				{NSID: 2, Device: ramDevice(t, refusalSize, bs), ReadOnly: true},
			}}
			r := newHarness(t, 1, sub, SubsystemConfig{
				NQN: testSub + "2", AllowAnyHost: true,
				Namespaces: []NamespaceConfig{{NSID: 3, Device: ramDevice(t, refusalSize, bs)}},
			})
			q := r.connectHost(1).io[0]
			marker := bytes.Repeat([]byte{0x5A}, bs)
			r.ok(q, rw(nvme.NVMWrite, 1, 0, 1, marker))
			for _, tc := range slices.Concat(checkedRows(bs), farRows(bs)) {
				r.run(tc.name, func(t *testing.T) {
					dev.take()
					r.status(q, tc.c, tc.want)
					if l := dev.take(); !tc.want.OK() && (tc.c.Returned > 0 || len(l) > 0) {
						t.Errorf("refused, but %d bytes came back and the device got %v",
							tc.c.Returned, l)
					}
				})
			}
			if got := r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, bs))); !bytes.Equal(got.Data,
				marker) {
				t.Error("LBA 0 changed")
			}
		})
	}
}

// checkedRows has each check of a command, and next to it a command that passes.
func checkedRows(bs int) []ioRow {
	blocks := uint64(refusalSize / bs)
	buf := func(n int) []byte { return make([]byte, n) }
	flags := func(c *fabrictest.Command, f nvme.RWFlags) *fabrictest.Command {
		c.SQE.RW().Set(c.SQE.SLBA(), c.SQE.NLB(), f)
		return c
	}
	capsule := rw(nvme.NVMRead, 1, 0, 1, buf(bs))
	capsule.InCapsule = true
	return []ioRow{
		{"read at the end", rw(nvme.NVMRead, 1, blocks, 1, buf(bs)), outOfRange},
		{"read across the end", rw(nvme.NVMRead, 1, blocks-1, 2, buf(2*bs)), outOfRange},
		{"last block", rw(nvme.NVMRead, 1, blocks-1, 1, buf(bs)), nvme.Success},
		{
			"above MDTS",
			rw(nvme.NVMRead, 1, 0, uint32(defaultTransfer/bs+1), buf(defaultTransfer+bs)),
			invalidField,
		},
		{
			"MDTS", rw(nvme.NVMRead, 1, 0, uint32(defaultTransfer/bs), buf(defaultTransfer)),
			nvme.Success,
		},
		{"NSID 0", rw(nvme.NVMRead, 0, 0, 1, buf(bs)), invalidNamespace},
		{"NSID all", rw(nvme.NVMRead, nvme.NSIDAll, 0, 1, buf(bs)), invalidNamespace},
		{"unknown NSID", rw(nvme.NVMWrite, 77, 0, 1, buf(bs)), inactiveNamespace},
		{"NSID of another subsystem", rw(nvme.NVMRead, 3, 0, 1, buf(bs)), inactiveNamespace},
		{"short SGL", rw(nvme.NVMRead, 1, 0, 2, buf(bs)), invalidLength},
		{"long SGL", rw(nvme.NVMWrite, 1, 0, 1, buf(2*bs)), invalidLength},
		{"no SGL", rw(nvme.NVMRead, 1, 0, 1, nil), invalidLength},
		{"odd SGL", rw(nvme.NVMWrite, 1, 0, 1, buf(bs-1)), invalidLength},
		{"read in the capsule", capsule, invalidField},
		{"directive", flags(rw(nvme.NVMWrite, 1, 0, 1, buf(bs)), 1<<20), invalidField},
		{
			"PRINFO is ignored", flags(rw(nvme.NVMRead, 1, 0, 1, buf(bs)), nvme.RWPRInfo),
			nvme.Success,
		},
		{"write to read-only", rw(nvme.NVMWrite, 2, 0, 1, buf(bs)), writeProtected},
		{"zeroes to read-only", rw(nvme.NVMWriteZeroes, 2, 0, 1, nil), writeProtected},
		{"deallocate read-only", dsm(2, true, [2]uint64{0, 1}), writeProtected},
		{"read from read-only", rw(nvme.NVMRead, 2, 0, 1, buf(bs)), nvme.Success},
		{"flush of nothing", command(nvme.NVMFlush, 77, nil), inactiveNamespace},
		{"flush NSID 0", command(nvme.NVMFlush, 0, nil), invalidNamespace},
		{"flush all", command(nvme.NVMFlush, nvme.NSIDAll, nil), nvme.Success},
		{"flush with data", command(nvme.NVMFlush, 1, buf(4)), invalidLength},
		{"zeroes beyond the end", rw(nvme.NVMWriteZeroes, 1, blocks-1, 2, nil), outOfRange},
		{"zeroes with data", rw(nvme.NVMWriteZeroes, 1, 0, 1, buf(bs)), invalidLength},
	}
}

// farRows are writes at addresses whose arithmetic may wrap.
func farRows(bs int) (rows []ioRow) {
	for _, slba := range []uint64{
		1<<64 - 1, 1<<64 - 2, 1 << 63, 1 << 61, 1 << 55, 1 << 52,
		1 << 32 * 512,
	} {
		for _, n := range []uint32{1, 2} {
			c := rw(nvme.NVMWrite, 1, slba, n, make([]byte, int(n)*bs))
			rows = append(rows, ioRow{fmt.Sprintf("SLBA %#x+%d", slba, n), c, outOfRange})
		}
	}
	return rows
}
