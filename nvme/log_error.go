package nvme

// ErrorLogEntrySize is the size of an entry of the Error Information log, LID 01h.
const ErrorLogEntrySize = 64

// ErrorLogEntry is an entry of the Error Information log, newest first (Base section 5.1.12.1.2).
type ErrorLogEntry struct {
	Count    uint64 // number of the error since the controller was created; 0 is an unused entry
	SQID     uint16
	CID      uint16
	Status   uint16 // as in the CQE: status field in bits 15:1, phase tag in bit 0
	Location uint16 // byte in bits 7:0, bit in bits 10:8
	LBA      uint64
	NSID     uint32
	Vendor   uint8
	TRTYPE   TransportType
	CSI      CSI
	Opcode   Opcode
	// CommandSpecific and TransportSpecific are further information about the error.
	CommandSpecific   uint64
	TransportSpecific uint16
	_                 [21]byte
	Version           uint8
}

// Values of ErrorLogEntry.Location: fields of the command.
const (
	LocationOpcode      uint16 = 0
	LocationFlags       uint16 = 1 // FUSE and PSDT
	LocationNSID        uint16 = 4
	LocationFabricsType uint16 = 4
	LocationSGLLength   uint16 = 32 // of SGL1
	LocationSGLType     uint16 = 39
	LocationCDW10       uint16 = 40 // SLBA, LID, FID
	LocationSave        uint16 = 43 | 7<<8
	LocationNone        uint16 = 0xFFFF // no particular field
)
