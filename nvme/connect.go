package nvme

import (
	"encoding/binary"
	"fmt"
)

// ConnectDataSize is the size of the data of a Connect command (Base section 6.3).
const ConnectDataSize = 1024

// CNTLIDDynamic asks for a controller of the dynamic model; CNTLIDStatic for any static one.
// CNTLIDMax is the largest identifier a controller may have (Base sections 3.1.2 and 6.3).
const (
	CNTLIDDynamic uint16 = 0xFFFF
	CNTLIDStatic  uint16 = 0xFFFE
	CNTLIDMax     uint16 = 0xFFEF
)

// FabricsType is byte 4 of a Fabrics command.
func (s *SQE) FabricsType() FabricsType { return FabricsType(s[4]) }

// ConnectSQE is a Connect command (Base section 6.3).
type ConnectSQE SQE

// Connect views s as a Connect command.
func (s *SQE) Connect() *ConnectSQE { return (*ConnectSQE)(s) }

// CATTR is the Connect attributes, byte 46.
type CATTR uint8

// CATTRNoFlowControl disables SQ flow control.
const CATTRNoFlowControl CATTR = 1 << 2

// RECFMT is the record format, 0.
func (s *ConnectSQE) RECFMT() uint16 { return binary.LittleEndian.Uint16(s[40:]) }

// QID is the queue to make; 0 is the admin queue.
func (s *ConnectSQE) QID() uint16 { return binary.LittleEndian.Uint16(s[42:]) }

// SQSIZE is the size of the submission queue, 0-based.
func (s *ConnectSQE) SQSIZE() uint16 { return binary.LittleEndian.Uint16(s[44:]) }

// CATTR is the connect attributes.
func (s *ConnectSQE) CATTR() CATTR { return CATTR(s[46]) }

// KATO is the keep alive timeout in milliseconds, admin queue only; 0 turns it off.
func (s *ConnectSQE) KATO() uint32 { return binary.LittleEndian.Uint32(s[48:]) }

// Set makes a Connect command of record format 0; the SGL and the CID are the caller's.
func (s *ConnectSQE) Set(qid, sqsize uint16, cattr CATTR, kato uint32) {
	s[0], s[4] = byte(FabricsOpcode), byte(FabricsConnect)
	binary.LittleEndian.PutUint16(s[40:], 0)
	binary.LittleEndian.PutUint16(s[42:], qid)
	binary.LittleEndian.PutUint16(s[44:], sqsize)
	s[46] = byte(cattr)
	binary.LittleEndian.PutUint32(s[48:], kato)
}

// ConnectData is the data of Connect (Base section 6.3). ParseNQN reads SUBNQN and HOSTNQN.
type ConnectData struct {
	HostID  [16]byte
	CNTLID  uint16
	_       [238]byte
	SUBNQN  [NQNFieldSize]byte
	HOSTNQN [NQNFieldSize]byte
	_       [256]byte
}

// Offsets in Invalid Parameter responses: in the command (IATTR 0) and in the data (IATTR 1).
const (
	ConnectOffsetFlags  = 1 // FUSE and PSDT
	ConnectOffsetSGL1   = 24
	ConnectOffsetRECFMT = 40
	ConnectOffsetQID    = 42
	ConnectOffsetSQSIZE = 44
	ConnectOffsetCATTR  = 46
	ConnectOffsetKATO   = 48

	ConnectDataOffsetHostID  = 0
	ConnectDataOffsetCNTLID  = 16
	ConnectDataOffsetSUBNQN  = 256
	ConnectDataOffsetHOSTNQN = 512
)

// ConnectResult is DW0 of a successful Connect: CNTLID in bits 15:0 and AUTHREQ in bits 31:16.
type ConnectResult uint32

// ConnectATR is the bit of AUTHREQ that requires authentication with NVMe in-band protocols.
const ConnectATR ConnectResult = 1 << 17

// ConnectASCR is the bit of AUTHREQ that requires secure channel concatenation besides.
const ConnectASCR ConnectResult = 1 << 18

// MakeConnectResult makes the result of a Connect that needs no authentication.
func MakeConnectResult(cntlid uint16) ConnectResult { return ConnectResult(cntlid) }

// CNTLID is the controller the host is connected to.
func (r ConnectResult) CNTLID() uint16 { return uint16(r) }

// InvalidParameter is DW0 of a Connect refused with ConnectInvalidParameters or ConnectInvalidHost:
// IPO, the offset of the field, in bits 15:0; IATTR bit 0, set if the field is in the data, in bit
// 16.
type InvalidParameter uint32

// InvalidInCommand names a field of the command by its offset.
func InvalidInCommand(offset uint16) InvalidParameter { return InvalidParameter(offset) }

// InvalidInData names a field of the Connect data by its offset.
func InvalidInData(offset uint16) InvalidParameter { return InvalidParameter(offset) | 1<<16 }

// IPO is the offset.
func (p InvalidParameter) IPO() uint16 { return uint16(p) }

// InData reports whether the offset is into the Connect data.
func (p InvalidParameter) InData() bool { return p>>16&1 != 0 }

// String is "byte 44 of the command" or "byte 256 of the data".
func (p InvalidParameter) String() string {
	if p.InData() {
		return fmt.Sprintf("byte %d of the data", p.IPO())
	}
	return fmt.Sprintf("byte %d of the command", p.IPO())
}
