package nvme

// Opcode is byte 0 of an entry. Bits 1:0 are the direction of data (Base figure 141).
type Opcode uint8

// Admin opcodes (Base figure 141).
const (
	AdminGetLogPage    Opcode = 0x02
	AdminIdentify      Opcode = 0x06
	AdminAbort         Opcode = 0x08
	AdminSetFeatures   Opcode = 0x09
	AdminGetFeatures   Opcode = 0x0A
	AdminAsyncEventReq Opcode = 0x0C
	AdminSelfTest      Opcode = 0x14
	AdminKeepAlive     Opcode = 0x18
)

// FabricsOpcode is that of all Fabrics commands; FabricsType tells which (Base section 6).
const FabricsOpcode Opcode = 0x7F

// I/O opcodes of the NVM command set (NVM section 3.3; Flush is Base section 7.2).
const (
	NVMFlush              Opcode = 0x00
	NVMWrite              Opcode = 0x01
	NVMRead               Opcode = 0x02
	NVMWriteUncorrectable Opcode = 0x04
	NVMCompare            Opcode = 0x05
	NVMWriteZeroes        Opcode = 0x08
	NVMDatasetManagement  Opcode = 0x09
	NVMVerify             Opcode = 0x0C
	NVMCopy               Opcode = 0x19

	// reservations: Base sections 7.5 to 7.8
	IOReservationRegister Opcode = 0x0D
	IOReservationReport   Opcode = 0x0E
	IOReservationAcquire  Opcode = 0x11
	IOReservationRelease  Opcode = 0x15
)

// FabricsType is byte 4 of a Fabrics command (Base section 6).
type FabricsType uint8

// The Fabrics command types.
const (
	FabricsPropertySet FabricsType = 0x00
	FabricsConnect     FabricsType = 0x01
	FabricsPropertyGet FabricsType = 0x04
	FabricsAuthSend    FabricsType = 0x05
	FabricsAuthReceive FabricsType = 0x06
	FabricsDisconnect  FabricsType = 0x08
)
