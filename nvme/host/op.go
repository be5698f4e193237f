package host

import "github.com/nvmf-target/nvmf-target/nvme"

// Op is a command to submit. It may be reused once Submit has returned; Data belongs to the command
// until its completion.
type Op struct {
	// SQE is the command. Submit fills CID, PSDT and the SGL.
	SQE nvme.SQE
	// Data is the source or the destination of the transfer, according to bits 1:0 of the opcode.
	Data []byte
	// Token is returned with the completion.
	Token uint64
	// Blocks is the number of keyed data blocks that describe Data over RDMA, in a list in the
	// capsule: at most the controller's MSDBD. With 0 or 1 there is no list, but one data block in
	// the command, or in-capsule data. A list requires Data from Controller.Map.
	Blocks int
	// Raw leaves flags and SGL of SQE unchanged, for tests of controllers that must refuse them.
	Raw bool
}

// set replaces the command and its data.
func (o *Op) set(code nvme.Opcode, nsid uint32, data []byte) {
	o.SQE = nvme.SQE{}
	o.SQE.SetOpcode(code)
	o.SQE.SetNSID(nsid)
	o.Data, o.Blocks, o.Raw = data, 0, false
}

// Read makes o a Read of blocks logical blocks into data.
func (o *Op) Read(nsid uint32, slba uint64, blocks uint32, data []byte) {
	o.set(nvme.NVMRead, nsid, data)
	o.SQE.RW().Set(slba, blocks, 0)
}

// Write makes o a Write of blocks logical blocks from data.
func (o *Op) Write(nsid uint32, slba uint64, blocks uint32, data []byte, flags nvme.RWFlags) {
	o.set(nvme.NVMWrite, nsid, data)
	o.SQE.RW().Set(slba, blocks, flags)
}

// WriteZeroes makes o a Write Zeroes of blocks logical blocks.
func (o *Op) WriteZeroes(nsid uint32, slba uint64, blocks uint32, flags nvme.RWFlags) {
	o.set(nvme.NVMWriteZeroes, nsid, nil)
	o.SQE.RW().Set(slba, blocks, flags)
}

// Compare makes o a Compare of blocks logical blocks with data.
func (o *Op) Compare(nsid uint32, slba uint64, blocks uint32, data []byte) {
	o.set(nvme.NVMCompare, nsid, data)
	o.SQE.RW().Set(slba, blocks, 0)
}

// Verify makes o a Verify of blocks logical blocks.
func (o *Op) Verify(nsid uint32, slba uint64, blocks uint32) {
	o.set(nvme.NVMVerify, nsid, nil)
	o.SQE.RW().Set(slba, blocks, 0)
}

// Copy makes o a Copy of the source ranges in data, nvme.CopyRangeSize bytes each, to sdlba.
func (o *Op) Copy(nsid uint32, sdlba uint64, format nvme.CopyFormat, data []byte,
	flags nvme.RWFlags,
) {
	o.set(nvme.NVMCopy, nsid, data)
	o.SQE.Copy().Set(sdlba, len(data)/nvme.CopyRangeSize, format, flags)
}

// Fuse makes o the first (1) or the second (2) command of a fused pair.
func (o *Op) Fuse(half uint8) { o.SQE.SetFlags(half) }

// Flush makes o a Flush.
func (o *Op) Flush(nsid uint32) { o.set(nvme.NVMFlush, nsid, nil) }

// Discard makes o a Dataset Management that deallocates the ranges in data, each of
// nvme.DSMRangeSize bytes.
func (o *Op) Discard(nsid uint32, data []byte) {
	o.set(nvme.NVMDatasetManagement, nsid, data)
	o.SQE.DSM().Set(len(data)/nvme.DSMRangeSize, true)
}

// Completion is a completed command: its Op.Token and the completion queue entry.
type Completion struct {
	Token uint64
	CQE   nvme.CQE
}

// Status is the status of the command.
func (c *Completion) Status() nvme.Status { return c.CQE.Status() }

// direction is the data transfer direction of a command: bits 1:0 of the opcode, or of the Fabrics
// command type (Base sections 4.1.1 and 6).
type direction uint8

const (
	noData direction = 0
	toCtrl direction = 1
	toHost direction = 2
)

func directionOf(s *nvme.SQE) direction {
	if s.Opcode() == nvme.FabricsOpcode {
		return direction(s.FabricsType() & 3)
	}
	return direction(s.Opcode() & 3)
}
