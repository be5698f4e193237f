package host

import "github.com/nvmf-target/nvmf-target/nvme"

// Op is a command. It may be reused after Submit; Data belongs to it until its completion.
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

func (o *Op) Flush(nsid uint32) { o.set(nvme.NVMFlush, nsid, nil) }

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
