// Package packet has the headers, opcodes and checksum of InfiniBand transport packets, which
// RoCEv2 carries in UDP datagrams, and the arithmetic of their sequence numbers.
//
// Sections are of the InfiniBand Architecture Specification, volume 1, release 1.4.
package packet

import "encoding/binary"

// Sizes of the headers in bytes.
const (
	BTHSize  = 12
	RETHSize = 16
	AETHSize = 4
	IETHSize = 4
	DETHSize = 8
	// MaxSize is the largest length of a packet: a payload of 4,096 bytes after BTH and the longest
	// extended headers, AtomicETH with its 28 bytes.
	MaxSize = BTHSize + 28 + 4096
)

// PKeyDefault is the partition of every packet here: the default partition with the bit of full
// membership (section 10.9.1).
const PKeyDefault = 0xffff

// BTH is the base transport header (section 9.2).
type BTH struct {
	Opcode    Opcode
	Solicited bool
	// MigReq is the migration state. It is set where automatic path migration is not used.
	MigReq     bool
	Pad        uint8 // bytes of padding after the payload, 0 to 3
	PKey       uint16
	FECN, BECN bool
	QPN        uint32 // destination queue pair, 24 bits
	AckReq     bool
	PSN        uint32 // 24 bits
}

// Put writes the header to b[:BTHSize].
func (h *BTH) Put(b []byte) {
	b = b[:BTHSize]
	b[0] = byte(h.Opcode)
	b[1] = flag(h.Solicited, 0x80) | flag(h.MigReq, 0x40) | h.Pad&3<<4 // transport version 0
	binary.BigEndian.PutUint16(b[2:], h.PKey)
	binary.BigEndian.PutUint32(b[4:], h.QPN&PSNMask)
	b[4] = flag(h.FECN, 0x80) | flag(h.BECN, 0x40)
	binary.BigEndian.PutUint32(b[8:], h.PSN&PSNMask)
	b[8] = flag(h.AckReq, 0x80)
}

// ParseBTH reads the header. It reports false if b is too short or the transport version is not 0
// (section 9.6: the packet is silently dropped).
func ParseBTH(b []byte) (h BTH, ok bool) {
	ok = h.parse(b)
	return h, ok
}

func (h *BTH) parse(b []byte) bool {
	if len(b) < BTHSize || b[1]&0xf != 0 {
		return false
	}
	h.Opcode, h.PKey = Opcode(b[0]), binary.BigEndian.Uint16(b[2:])
	h.Solicited, h.MigReq, h.Pad = b[1]&0x80 != 0, b[1]&0x40 != 0, b[1]>>4&3
	q, p := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	h.FECN, h.BECN, h.QPN = q>>31 != 0, q>>30&1 != 0, q&PSNMask
	h.AckReq, h.PSN = p>>31 != 0, p&PSNMask
	return true
}

func flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

// RETH is the RDMA extended transport header (section 9.3.3) of a READ request and of the first
// packet of a WRITE.
type RETH struct {
	Addr uint64
	RKey uint32
	Len  uint32 // of the whole message
}

// Put writes the header to b[:RETHSize].
func (h RETH) Put(b []byte) {
	b = b[:RETHSize]
	binary.BigEndian.PutUint64(b, h.Addr)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint32(b[12:], h.Len)
}

// ParseRETH reads the header from b[:RETHSize].
func ParseRETH(b []byte) RETH {
	b = b[:RETHSize]
	return RETH{
		binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:]),
	}
}

// AETH is the ACK extended transport header (section 9.3.5).
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // number of messages the responder has completed, 24 bits
}

// A Syndrome tells ACK, RNR NAK and NAK apart (sections 9.3.5 and 9.7.5.2). The upper three
// bits are the type, the lower five its value.
type Syndrome uint8

// Types of a syndrome.
const (
	// SyndromeACK has a credit count. 31 means that the responder gives no credits.
	SyndromeACK Syndrome = 0 << 5
	// SyndromeRNR has the code of the time to wait (section 9.7.5.2.8).
	SyndromeRNR Syndrome = 1 << 5
	// SyndromeNAK has the code of an error.
	SyndromeNAK Syndrome = 3 << 5

	// AckNoCredits is the syndrome of an ACK without end-to-end flow control.
	AckNoCredits = SyndromeACK | 31

	NAKSequence    = SyndromeNAK     // PSN sequence error
	NAKInvalid     = SyndromeNAK | 1 // invalid request
	NAKAccess      = SyndromeNAK | 2 // remote access error
	NAKOperational = SyndromeNAK | 3 // remote operational error
)

// Type returns SyndromeACK, SyndromeRNR, SyndromeNAK, or the reserved type 2<<5.
func (s Syndrome) Type() Syndrome { return s & 0x60 }

// Value returns the credit count, timer or error code.
func (s Syndrome) Value() uint8 { return uint8(s & 0x1f) }

// Put writes the header to b[:AETHSize].
func (h AETH) Put(b []byte) {
	binary.BigEndian.PutUint32(b[:AETHSize], uint32(h.Syndrome)<<24|h.MSN&PSNMask)
}

// ParseAETH reads the header from b[:AETHSize].
func ParseAETH(b []byte) AETH {
	v := binary.BigEndian.Uint32(b[:AETHSize])
	return AETH{Syndrome(v >> 24), v & PSNMask}
}

// IETH is the invalidate extended header (section 9.3): the R_Key of a SEND_WITH_INV.
type IETH uint32

// Put writes the header to b[:IETHSize].
func (h IETH) Put(b []byte) { binary.BigEndian.PutUint32(b[:IETHSize], uint32(h)) }

// ParseIETH reads the header from b[:IETHSize].
func ParseIETH(b []byte) IETH { return IETH(binary.BigEndian.Uint32(b[:IETHSize])) }

// DETH is the datagram extended transport header (section 9.3.2).
type DETH struct {
	QKey  uint32
	SrcQP uint32 // 24 bits
}

// Put writes the header to b[:DETHSize].
func (h DETH) Put(b []byte) {
	b = b[:DETHSize]
	binary.BigEndian.PutUint32(b, h.QKey)
	binary.BigEndian.PutUint32(b[4:], h.SrcQP&PSNMask)
}

// ParseDETH reads the header from b[:DETHSize].
func ParseDETH(b []byte) DETH {
	b = b[:DETHSize]
	return DETH{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]) & PSNMask}
}

// A Header is a packet taken apart. Only the extended headers that the opcode has are set; the
// others keep the values of an earlier packet.
type Header struct {
	BTH
	Kind    Kind
	RETH    RETH
	AETH    AETH
	IETH    IETH
	DETH    DETH
	Payload []byte // without padding; part of the packet
}

// Parse takes a packet apart, from BTH to the padding. It reports false if the packet must be
// silently dropped (section 9.6): too short for its headers, a wrong transport version, a length
// that is not a multiple of 4, more padding than payload, a payload where the opcode has none, or
// one above 4,096 bytes. For KindOther only BTH and Kind are set, and Payload is nil.
//
// Parse does not know the queue pair. The caller checks P_Key, transport, path MTU and everything
// that depends on earlier packets.
func (h *Header) Parse(b []byte) bool {
	if !h.BTH.parse(b) || len(b)%4 != 0 || len(b) > MaxSize {
		return false
	}
	s := &shapes[h.Opcode]
	h.Kind, h.Payload = s.kind, nil
	if s.kind == KindOther {
		return true
	}
	size, pad := int(s.size), int(h.Pad)
	if len(b) < size+pad || len(b)-size > 4096 || s.has&payload == 0 && len(b) != size {
		return false
	}
	h.Payload = b[size : len(b)-pad]
	ext := b[BTHSize:]
	switch {
	case s.has&reth != 0:
		h.RETH = ParseRETH(ext)
	case s.has&aeth != 0:
		h.AETH = ParseAETH(ext)
	case s.has&ieth != 0:
		h.IETH = ParseIETH(ext)
	case s.has&deth != 0:
		h.DETH = ParseDETH(ext)
	}
	return true
}

// Pad returns the number of padding bytes after a payload of n bytes (section 9.2).
func Pad(n int) int { return -n & 3 }

// PSNMask covers the 24 bits of a PSN or a QPN.
const PSNMask = 1<<24 - 1

// DiffPSN returns how many packets a is after b: -2^23 to 2^23-1. PSNs wrap around, so the nearer
// way counts (section 9.7.1).
func DiffPSN(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }
