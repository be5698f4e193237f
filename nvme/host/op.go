package host

import "github.com/nvmf-target/nvmf-target/nvme"

// Op is a command to submit. It may be reused as soon as Submit has returned; Data may not be
// touched until the completion.
type Op struct {
	// SQE is the command. Submit fills CID, flags and the SGL.
	SQE nvme.SQE
	// Data is what the command carries or where its data goes, by bits 1:0 of the opcode.
	Data []byte
	// Token comes back with the completion.
	Token uint64
	// Blocks is the number of keyed data blocks, in a list in the capsule, that describe Data over
	// RDMA; at most the controller's MSDBD and the bytes of Data. 0 and 1: one in the command, or
	// Data in the capsule. Data is memory of Controller.Map.
	Blocks int
	// Raw leaves flags and SGL of SQE alone: for tests of controllers that must refuse them.
	Raw bool
}

// Read makes a Read of blocks logical blocks into data.
func (o *Op) Read(nsid uint32, slba uint64, blocks uint32, data []byte) {
	o.rw(nvme.NVMRead, nsid, slba, blocks, 0, data)
}

// Write makes a Write of blocks logical blocks from data.
func (o *Op) Write(nsid uint32, slba uint64, blocks uint32, data []byte, flags nvme.RWFlags) {
	o.rw(nvme.NVMWrite, nsid, slba, blocks, flags, data)
}

// WriteZeroes makes a Write Zeroes.
func (o *Op) WriteZeroes(nsid uint32, slba uint64, blocks uint32, flags nvme.RWFlags) {
	o.rw(nvme.NVMWriteZeroes, nsid, slba, blocks, flags, nil)
}

// Flush makes a Flush.
func (o *Op) Flush(nsid uint32) {
	o.SQE = nvme.SQE{}
	o.SQE.SetOpcode(nvme.NVMFlush)
	o.SQE.SetNSID(nsid)
	o.Data, o.Blocks, o.Raw = nil, 0, false
}

// Discard makes a Dataset Management that deallocates the ranges in data, nvme.DSMRangeSize bytes
// each.
func (o *Op) Discard(nsid uint32, data []byte) {
	o.SQE = nvme.SQE{}
	o.SQE.SetOpcode(nvme.NVMDatasetManagement)
	o.SQE.SetNSID(nsid)
	o.SQE.DSM().Set(len(data)/nvme.DSMRangeSize, true)
	o.Data, o.Blocks, o.Raw = data, 0, false
}

func (o *Op) rw(code nvme.Opcode, nsid uint32, slba uint64, blocks uint32, flags nvme.RWFlags,
	data []byte,
) {
	o.SQE = nvme.SQE{}
	o.SQE.SetOpcode(code)
	o.SQE.SetNSID(nsid)
	o.SQE.RW().Set(slba, blocks, flags)
	o.Data, o.Blocks, o.Raw = data, 0, false
}

// Completion is the end of a command.
type Completion struct {
	Token uint64
	CQE   nvme.CQE
}

// Status is the status of the command.
func (c *Completion) Status() nvme.Status { return c.CQE.Status() }

// direction is which way the data of a command goes: bits 1:0 of the opcode, or of the Fabrics
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
