package nvme

import "encoding/binary"

// The Discovery log, LID 70h (Base section 5.1.12.3.1): header and entries of 1024 bytes.
const (
	DiscoveryHeaderSize = 1024
	DiscoveryEntrySize  = 1024
)

// DiscoveryLocal (Port Local Entries Only) is bit 1 of LSP for the Discovery log, and of its
// descriptor in log 00h: only entries of the port through which the host asks.
const DiscoveryLocal = 1 << 1

// DiscoveryHeader is the header of the Discovery log.
type DiscoveryHeader struct {
	GENCTR uint64 // changes with every change of the log
	NUMREC uint64 // number of entries
	RECFMT uint16 // 0
	_      [1006]byte
}

// DiscoveryEntry is an entry of the Discovery log.
type DiscoveryEntry struct {
	TRTYPE  TransportType
	ADRFAM  AddressFamily
	SUBTYPE SubsystemType
	TREQ    TREQ
	PORTID  uint16
	CNTLID  uint16 // CNTLIDDynamic, CNTLIDStatic or a static controller
	ASQSZ   uint16 // largest admin submission queue, at least 32
	EFLAGS  EFLAGS
	_       [20]byte
	TRSVCID [32]byte // port, ASCII
	_       [192]byte
	SUBNQN  [NQNFieldSize]byte
	TRADDR  [256]byte // address, ASCII
	TSAS    [256]byte // see SetRDMA and SetTCP
}

// SetAddress writes the address and the port, padded with spaces as ASCII fields are.
func (e *DiscoveryEntry) SetAddress(addr, port string) {
	PutText(e.TRADDR[:], addr)
	PutText(e.TRSVCID[:], port)
}

// AddressFamily is ADRFAM.
type AddressFamily uint8

// The address families.
const (
	AddressIPv4 AddressFamily = 1
	AddressIPv6 AddressFamily = 2
)

// SubsystemType is SUBTYPE.
type SubsystemType uint8

// The subsystem types.
const (
	SubsystemReferral  SubsystemType = 1 // another discovery service
	SubsystemNVM       SubsystemType = 2
	SubsystemDiscovery SubsystemType = 3 // this discovery service
)

// TREQ has the secure channel in bits 1:0; bit 2 tells that SQ flow control may be disabled.
type TREQ uint8

// The values of TREQ.
const (
	TREQRequired      TREQ = 1
	TREQNotRequired   TREQ = 2
	TREQNoFlowControl TREQ = 1 << 2
)

// EFLAGS is the entry flags.
type EFLAGS uint16

// The bits of EFLAGS.
const (
	// DUPRETINFO: this entry leads to the same subsystem as the one in use
	EFLAGSDuplicate  EFLAGS = 1 << 0
	EFLAGSPersistent EFLAGS = 1 << 1 // EPCSD: explicit persistent connection support
)

// RDMAProvider is RDMA_PRTYPE (RDMA section 3.1, figure 3).
type RDMAProvider uint8

// The provider types.
const (
	RDMAProviderAny    RDMAProvider = 1
	RDMAProviderRoCEv2 RDMAProvider = 4
)

// SetRDMA writes the address subtype: reliable connected, RDMA CM (RDMA section 3.1, figure 3).
func (e *DiscoveryEntry) SetRDMA(p RDMAProvider, pkey uint16) {
	e.TSAS = [256]byte{0: 1, 1: byte(p), 2: 1}
	binary.LittleEndian.PutUint16(e.TSAS[8:], pkey)
}

// TCPSecurity is SECTYPE (TCP section 3.6.1.1, figure 17).
type TCPSecurity uint8

// The security types.
const (
	TCPNoSecurity TCPSecurity = 0
	TCPTLS13      TCPSecurity = 2
)

// SetTCP writes the TCP transport specific address subtype.
func (e *DiscoveryEntry) SetTCP(s TCPSecurity) { e.TSAS = [256]byte{0: byte(s)} }

// TCPSecurity is the security type of a TCP entry.
func (e *DiscoveryEntry) TCPSecurity() TCPSecurity { return TCPSecurity(e.TSAS[0]) }
