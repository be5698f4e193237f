package nvme

// IdentifyNamespace is the Identify Namespace data structure of the NVM command set, CNS 00h (NVM
// section 4.1.5.1). A namespace that is not active is all zeroes.
type IdentifyNamespace struct {
	NSZE   uint64 // size in logical blocks
	NCAP   uint64 // capacity in logical blocks
	NUSE   uint64 // blocks in use
	NSFEAT NSFEAT
	NLBAF  uint8 // LBA formats, 0-based
	FLBAS  uint8 // format in use: bits 3:0 and 6:5
	MC     uint8
	DPC    uint8
	DPS    uint8
	NMIC   NMIC
	RESCAP ReservationCap
	FPI    uint8
	DLFEAT DLFEAT
	NAWUN  uint16 // blocks, 0-based
	NAWUPF uint16 // blocks, 0-based; valid with NSFEATAtomics
	NACWU  uint16 // as above
	NABSN  uint16
	NABO   uint16
	NABSPF uint16
	NOIOB  uint16 // optimal I/O boundary, blocks
	NVMCAP [16]byte
	NPWG   uint16 // preferred write granularity, blocks, 0-based; valid with NSFEATOptimalIO
	NPWA   uint16 // preferred write alignment
	NPDG   uint16 // preferred deallocate granularity
	NPDA   uint16 // preferred deallocate alignment
	NOWS   uint16 // optimal write size, blocks, 0-based
	MSSRL  uint16 // blocks in a source range of Copy
	MCL    uint32 // blocks of a Copy
	MSRC   uint8  // source ranges of a Copy, 0-based
	KPIOS  uint8
	NULBAF uint8
	_      [9]byte

	ANAGRPID uint32
	_        [3]byte
	NSATTR   NSATTR
	NVMSETID uint16
	ENDGID   uint16
	NGUID    [16]byte // big-endian, all zero if not supported
	EUI64    [8]byte  // big-endian, all zero if not supported
	LBAF     [64]LBAFormat
	VS       [3712]byte
}

// LBAFormat is an LBA Format data structure (NVM section 4.1.5.1).
type LBAFormat struct {
	MS    uint16 // metadata bytes
	LBADS uint8  // log2 of the bytes of a logical block, at least 9
	RP    uint8  // relative performance
}

// Format is the LBA format in use (FLBAS).
func (n *IdentifyNamespace) Format() LBAFormat { return n.LBAF[n.FLBAS&0xF|n.FLBAS>>1&0x30] }

// NSFEAT is Namespace Features (byte 24).
type NSFEAT uint8

// The bits of NSFEAT.
const (
	NSFEATThin      NSFEAT = 1 << 0
	NSFEATAtomics   NSFEAT = 1 << 1 // NAWUN, NAWUPF and NACWU are defined
	NSFEATOptimalIO NSFEAT = 1 << 4 // NPWG, NPWA, NPDG, NPDA and NOWS are defined
)

// NMIC is Namespace Multi-path I/O and Namespace Sharing Capabilities (byte 30).
type NMIC uint8

// NMICShared reports that several controllers may have the namespace attached.
const NMICShared NMIC = 1 << 0

// DLFEAT is Deallocate Logical Block Features (byte 33). Bits 2:0 are the value that deallocated
// blocks read as.
type DLFEAT uint8

// The values and bits of DLFEAT.
const (
	DLFEATReadsZeroes DLFEAT = 1      // bits 2:0 = 001b
	DLFEATWriteZeroes DLFEAT = 1 << 3 // DEAC of Write Zeroes is supported
)

// NSATTR is Namespace Attributes (byte 99).
type NSATTR uint8

// NSATTRWriteProtected reports that the namespace cannot be written.
const NSATTRWriteProtected NSATTR = 1 << 0

// IdentifyNamespaceIndependent is the I/O Command Set Independent Identify Namespace data
// structure, CNS 08h (Base section 5.1.13.2.8).
type IdentifyNamespaceIndependent struct {
	NSFEAT   IndependentNSFEAT
	NMIC     NMIC
	RESCAP   ReservationCap
	FPI      uint8
	ANAGRPID uint32
	NSATTR   NSATTR
	_        uint8
	NVMSETID uint16
	ENDGID   uint16
	NSTAT    NSTAT
	_        [4081]byte
}

// IndependentNSFEAT is Namespace Features of CNS 08h (byte 0). Its bits differ from the NSFEAT of
// CNS 00h.
type IndependentNSFEAT uint8

// IndependentRotational (RMEDIA): the namespace stores data on rotational media. Base section
// 8.1.23 lists the requirements on such a controller.
const IndependentRotational IndependentNSFEAT = 1 << 4

// NSTAT is Namespace Status (byte 14 of CNS 08h).
type NSTAT uint8

// NSTATReady (NRDY): the namespace is ready. Linux hides a namespace that is not.
const NSTATReady NSTAT = 1 << 0
