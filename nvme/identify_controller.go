package nvme

// IdentifyDataSize is the size of every Identify data structure (Base section 5.1.13.1).
const IdentifyDataSize = 4096

// IdentifyController is the Identify Controller data structure, CNS 01h (Base section 5.1.13.2.1).
// Field names follow the specification; the struct has the order and the widths of the wire. Fields
// that only PCIe controllers have are here so that a parser keeps them.
type IdentifyController struct {
	VID, SSVID   uint16
	SN           [20]byte // serial number, ASCII
	MN           [40]byte // model number, ASCII
	FR           [8]byte  // firmware revision, ASCII
	RAB          uint8
	IEEE         [3]byte
	CMIC         CMIC
	MDTS         uint8 // largest transfer: 1<<MDTS units of CAP.MPSMIN; 0 is unlimited
	CNTLID       uint16
	VER          Version
	RTD3R, RTD3E uint32
	OAES         EventMask // asynchronous events supported
	CTRATT       CTRATT
	RRLS         uint16
	_            [9]byte
	CNTRLTYPE    ControllerType
	FGUID        [16]byte
	CRDT         [3]uint16 // command retry delay times, units of 100 ms
	_            [119]byte
	NVMSR        uint8
	VWCI         uint8
	MEC          uint8

	OACS           OACS
	ACL            uint8 // concurrent Aborts, 0-based
	AERL           uint8 // outstanding asynchronous event requests, 0-based
	FRMW           uint8
	LPA            LPA
	ELPE           uint8 // error log entries, 0-based
	NPSS           uint8 // power states, 0-based
	AVSCC          uint8
	APSTA          uint8
	WCTEMP, CCTEMP uint16 // kelvin
	MTFA           uint16
	HMPRE, HMMIN   uint32
	TNVMCAP        [16]byte
	UNVMCAP        [16]byte
	RPMBS          uint32
	EDSTT          uint16 // minutes that an extended self-test takes
	DSTO           uint8  // bit 0: one self-test at a time in the subsystem; 0: for each controller
	FWUG           uint8
	KAS            uint16 // keep alive granularity, units of 100 ms; not 0 over fabrics
	HCTMA          uint16
	MNTMT, MXTMT   uint16
	SANICAP        uint32
	HMMINDS        uint32
	HMMAXD         uint16
	NSETIDMAX      uint16
	ENDGIDMAX      uint16
	ANATT          uint8 // ANA transition time, seconds
	ANACAP         ANACAP
	ANAGRPMAX      uint32
	NANAGRPID      uint32
	PELS           uint32
	DomainID       uint16
	_              [10]byte
	MEGCAP         [16]byte
	_              [2]byte
	CQT            uint16 // command quiesce time, milliseconds; 0: not reported
	_              [124]byte

	SQES   uint8 // bits 3:0 required, 7:4 largest, powers of two: 66h
	CQES   uint8 // 44h
	MAXCMD uint16
	NN     uint32 // largest NSID
	ONCS   ONCS
	FUSES  FUSES
	FNA    uint8
	VWC    VWC
	AWUN   uint16 // blocks, 0-based
	AWUPF  uint16 // blocks, 0-based
	ICSVSCC,
	NWPC uint8
	ACWU   uint16 // blocks, 0-based
	CDFS   uint16 // copy descriptor formats: CopyFormat.Bit
	SGLS   SGLS
	MNAN   uint32 // most namespaces that can be attached
	MAXDNA [16]byte
	MAXCNA uint32
	_      [204]byte
	SUBNQN [NQNFieldSize]byte // NUL-terminated; see PutNQN
	_      [768]byte

	// Fabrics only, bytes 1792 to 2047.
	IOCCSZ uint32 // largest I/O command capsule, units of 16 bytes
	IORCSZ uint32 // largest I/O response capsule, units of 16 bytes
	ICDOFF uint16 // in-capsule data offset, units of 16 bytes
	FCATT  uint8  // bit 0: static controllers
	MSDBD  uint8  // most SGL data block descriptors; 0 is unlimited
	OFCS   uint16 // bit 0: Disconnect supported
	DCTYPE uint8  // 0: not reported, 1: direct, 2: central
	_      [241]byte

	PSD [1024]byte // power state descriptors
	VS  [1024]byte
}

// ControllerType is CNTRLTYPE (Base section 5.1.13.2.1, byte 111).
type ControllerType uint8

// The controller types.
const (
	ControllerTypeIO        ControllerType = 1
	ControllerTypeDiscovery ControllerType = 2
)

// CMIC is Controller Multi-Path I/O and Namespace Sharing Capabilities (byte 76).
type CMIC uint8

// The bits of CMIC.
const (
	CMICMultiPort       CMIC = 1 << 0
	CMICMultiController CMIC = 1 << 1
	CMICANA             CMIC = 1 << 3
)

// ANACAP is Asymmetric Namespace Access Capabilities (byte 343).
type ANACAP uint8

// ANACAPAll allows all five ANAStates to be reported.
const ANACAPAll ANACAP = 0x1F

// CTRATT is Controller Attributes (bytes 96 to 99).
type CTRATT uint32

// The attributes that matter over fabrics.
const (
	CTRATTHostID128       CTRATT = 1 << 0 // 128-bit host identifiers: mandatory over fabrics
	CTRATTEnduranceGroups CTRATT = 1 << 4
	CTRATTTBKAS           CTRATT = 1 << 6 // traffic counts as keep alive
)

// LPA is Log Page Attributes (byte 261).
type LPA uint8

// The bits of LPA.
const (
	LPASMARTPerNamespace LPA = 1 << 0
	LPAEffects           LPA = 1 << 1 // log 05h
	LPAExtendedData      LPA = 1 << 2 // NUMDU and LPO
	LPATelemetry         LPA = 1 << 3 // logs 07h and 08h
	LPASupportedPages    LPA = 1 << 5 // logs 00h, 12h and 13h
)

// OACS is Optional Admin Command Support (bytes 256 and 257).
type OACS uint16

// OACSSelfTest reports that Device Self-test is supported.
const OACSSelfTest OACS = 1 << 4

// ONCS is Optional NVM Command Support (bytes 520 and 521).
type ONCS uint16

// The bits of ONCS.
const (
	ONCSCompare            ONCS = 1 << 0
	ONCSWriteUncorrectable ONCS = 1 << 1
	ONCSDatasetManagement  ONCS = 1 << 2
	ONCSWriteZeroes        ONCS = 1 << 3
	ONCSSaveSelect         ONCS = 1 << 4
	ONCSReservations       ONCS = 1 << 5
	ONCSTimestamp          ONCS = 1 << 6
	ONCSVerify             ONCS = 1 << 7
	ONCSCopy               ONCS = 1 << 8
)

// FUSES is Fused Operation Support (bytes 522 and 523).
type FUSES uint16

// FUSESCompareWrite reports that Compare and Write can be fused.
const FUSESCompareWrite FUSES = 1 << 0

// VWC is Volatile Write Cache (byte 525).
type VWC uint8

// The bits of VWC: the presence of a cache, and in bits 2:1 how Flush treats NSID FFFFFFFFh.
const (
	VWCPresent  VWC = 1 << 0
	VWCFlushAll VWC = 3 << 1 // Flush with FFFFFFFFh flushes every namespace
)

// SGLS is SGL Support (bytes 536 to 539).
type SGLS uint32

// The bits of SGLS.
const (
	SGLSSupported SGLS = 1 << 0 // bits 1:0 = 01b: no alignment or granularity required
	SGLSKeyed     SGLS = 1 << 2 // keyed SGL data block descriptors
	// SAOS: the address of a data block may be an offset into the capsule
	SGLSOffset             SGLS = 1 << 20
	SGLSTransportDataBlock SGLS = 1 << 21
)
