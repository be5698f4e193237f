package pdu

// Params are the parameters of one connection, agreed on by ICReq and ICResp. The zero value
// applies before that: no digests, no alignment.
type Params struct {
	// HeaderDigest and DataDigest: PDUs after ICResp have them, if their type can.
	HeaderDigest, DataDigest bool
	// HPDA is the host's alignment for C2HData, CPDA the controller's for CapsuleCmd and H2CData;
	// in dwords, 0-based, 0 to 31.
	HPDA, CPDA uint8
	// MaxH2CData is the largest number of data bytes in one H2CData PDU (MAXH2CDATA of ICResp).
	MaxH2CData uint32
	// InCapsule is the largest number of data bytes in one CapsuleCmd. The controller has a tighter
	// bound when it has seen the command (AdminInCapsule for Fabrics and admin commands, IOCCSZ for
	// I/O).
	InCapsule uint32
}

// AdminInCapsule is the in-capsule data size of Fabrics and admin commands (TCP section 3.3.1).
const AdminInCapsule = 8192

// HeaderDigestSize is 4 if header digests are on, else 0.
func (p *Params) HeaderDigestSize() int {
	if p.HeaderDigest {
		return DigestSize
	}
	return 0
}

// DataDigestSize is 4 if data digests are on, else 0.
func (p *Params) DataDigestSize() int {
	if p.DataDigest {
		return DigestSize
	}
	return 0
}

// PDO is the data offset for a header of hlen bytes under the alignment align (HPDA or CPDA):
// header, digest, then padding up to a multiple of (align+1) dwords.
func (p *Params) PDO(hlen int, align uint8) int {
	unit := (int(align) + 1) * 4
	n := hlen + p.HeaderDigestSize()
	return (n + unit - 1) / unit * unit
}

// headerFlags is HDGSTF if header digests are on.
func (p *Params) headerFlags() Flags {
	if p.HeaderDigest {
		return HDGSTF
	}
	return 0
}

// dataFlags is HDGSTF and DDGSTF as agreed, for a PDU with data.
func (p *Params) dataFlags() Flags {
	f := p.headerFlags()
	if p.DataDigest {
		f |= DDGSTF
	}
	return f
}
