package pdu

import "github.com/nvmf-target/nvmf-target/nvme"

// CapsuleCmdSize is the size of the header of a CapsuleCmd in bytes: the common header and the SQE.
const CapsuleCmdSize = HeaderSize + nvme.SQESize

// CapsuleCmd is the header of a command capsule (TCP section 3.6.2.6).
type CapsuleCmd [CapsuleCmdSize]byte

// OffSGL1 is the offset of the SGL descriptor in a CapsuleCmd, for the FEI of a Fault.
const OffSGL1 = HeaderSize + 24

// Set writes the header for a command with n bytes of in-capsule data and does not change the SQE.
// It returns PDO, the number of bytes (header, header digest, padding) before the data or, without
// data, the length of the PDU.
func (c *CapsuleCmd) Set(p *Params, n uint32) int {
	if n == 0 {
		plen := CapsuleCmdSize + p.HeaderDigestSize()
		c.Header().Set(TypeCapsuleCmd, p.headerFlags(), CapsuleCmdSize, 0, uint32(plen))
		return plen
	}
	pdo := p.PDO(CapsuleCmdSize, p.CPDA)
	c.Header().Set(TypeCapsuleCmd, p.dataFlags(), CapsuleCmdSize, pdo,
		uint32(pdo+p.DataDigestSize())+n)
	return pdo
}

// Header is the common header.
func (c *CapsuleCmd) Header() *Header { return (*Header)(c[:HeaderSize]) }

// SQE is the command.
func (c *CapsuleCmd) SQE() *nvme.SQE { return (*nvme.SQE)(c[HeaderSize:]) }

// CapsuleRespSize is the size of a CapsuleResp without header digest: common header and CQE.
const CapsuleRespSize = HeaderSize + nvme.CQESize

// CapsuleResp is a response capsule (TCP section 3.6.2.7). It has no data.
type CapsuleResp [CapsuleRespSize]byte

// Set writes the whole capsule without the digest.
func (c *CapsuleResp) Set(p *Params, cqe *nvme.CQE) {
	c.Header().Set(TypeCapsuleResp, p.headerFlags(), CapsuleRespSize, 0,
		uint32(CapsuleRespSize+p.HeaderDigestSize()))
	*c.CQE() = *cqe
}

// Header is the common header.
func (c *CapsuleResp) Header() *Header { return (*Header)(c[:HeaderSize]) }

// CQE is the completion queue entry.
func (c *CapsuleResp) CQE() *nvme.CQE { return (*nvme.CQE)(c[HeaderSize:]) }
