package iwarp

import (
	"encoding/binary"
	"hash/crc32"
)

// opcode is an RDMAP operation (RFC 5040, section 4.1).
type opcode uint8

const (
	opWrite opcode = iota
	opReadRequest
	opReadResponse
	opSend
	opSendInvalidate
	opSendSolicited
	opSendSolicitedInvalidate
	opTerminate
	numOpcodes
)

// Bits of the control field: DDP (RFC 5041, section 4.1) and RDMAP.
const (
	tagged       = 0x8000
	last         = 0x4000
	ddpVersion   = 1 << 8
	rdmapVersion = 1 << 6
	opcodeMask   = 0xf
)

// Queue numbers of untagged messages (RFC 5040, section 5).
const (
	queueSend = iota
	queueRead
	queueTerminate
)

// Lengths of headers, with the length field of MPA.
const (
	lengthSize   = 2
	prefixSize   = 4 // length and control
	taggedSize   = prefixSize + 12
	untaggedSize = prefixSize + 16
	readSize     = untaggedSize + 28
	maxHeader    = readSize
	crcSize      = 4
	maxTrailer   = 3 + crcSize
	// maxFPDU is the largest multiple of four that the length field allows.
	maxFPDU = 1 << 16
)

func (op opcode) tagged() bool { return op == opWrite || op == opReadResponse }

func (op opcode) send() bool { return op >= opSend && op <= opSendSolicitedInvalidate }

func (op opcode) invalidates() bool {
	return op == opSendInvalidate || op == opSendSolicitedInvalidate
}

// headerSize returns the length of the header of an operation.
func (op opcode) headerSize() int {
	switch {
	case op.tagged():
		return taggedSize
	case op == opReadRequest:
		return readSize
	}
	return untaggedSize
}

// A header is the header of a segment, with the fields of all operations.
type header struct {
	op   opcode
	last bool
	// n is the number of bytes of payload.
	n uint32
	// Tagged: the key of the memory, and the address in it.
	stag uint32
	to   uint64
	// Untagged; stag is the key to invalidate.
	queue, msn, mo uint32
	// READ request; its sink is stag and to.
	size, source uint32
	sourceTo     uint64
}

// put writes the header and returns its length.
func (h *header) put(b []byte) int {
	size := h.op.headerSize()
	control := uint16(ddpVersion|rdmapVersion) | uint16(h.op)
	if h.op.tagged() {
		control |= tagged
	}
	if h.last {
		control |= last
	}
	binary.BigEndian.PutUint16(b, uint16(size-lengthSize+int(h.n)))
	binary.BigEndian.PutUint16(b[2:], control)
	if h.op.tagged() {
		binary.BigEndian.PutUint32(b[4:], h.stag)
		binary.BigEndian.PutUint64(b[8:], h.to)
		return size
	}
	stag := uint32(0)
	if h.op.invalidates() {
		stag = h.stag
	}
	binary.BigEndian.PutUint32(b[4:], stag)
	binary.BigEndian.PutUint32(b[8:], h.queue)
	binary.BigEndian.PutUint32(b[12:], h.msn)
	binary.BigEndian.PutUint32(b[16:], h.mo)
	if h.op == opReadRequest {
		binary.BigEndian.PutUint32(b[20:], h.stag)
		binary.BigEndian.PutUint64(b[24:], h.to)
		binary.BigEndian.PutUint32(b[32:], h.size)
		binary.BigEndian.PutUint32(b[36:], h.source)
		binary.BigEndian.PutUint64(b[40:], h.sourceTo)
	}
	return size
}

// parsePrefix checks the prefix of an FPDU. It returns the operation and the length field.
func parsePrefix(b []byte) (op opcode, length int, why reason) {
	length = int(binary.BigEndian.Uint16(b))
	control := binary.BigEndian.Uint16(b[2:])
	op = opcode(control & opcodeMask)
	switch {
	case length < prefixSize-lengthSize:
		return op, length, badLength
	case control&0x300 != ddpVersion && control&tagged != 0:
		return op, length, badTaggedVersion
	case control&0x300 != ddpVersion:
		return op, length, badUntaggedVersion
	case control&0xc0 != rdmapVersion:
		return op, length, badRDMAPVersion
	case op >= numOpcodes || op.tagged() != (control&tagged != 0):
		return op, length, badOpcode
	case length < op.headerSize()-lengthSize || op == opReadRequest &&
		(length != op.headerSize()-lengthSize || control&last == 0):
		return op, length, badLength
	}
	return op, length, noReason
}

// parse reads a complete header. parsePrefix has accepted its prefix.
func (h *header) parse(b []byte) {
	control := binary.BigEndian.Uint16(b[2:])
	*h = header{op: opcode(control & opcodeMask), last: control&last != 0}
	h.n = uint32(int(binary.BigEndian.Uint16(b)) + lengthSize - h.op.headerSize())
	h.stag = binary.BigEndian.Uint32(b[4:])
	if h.op.tagged() {
		h.to = binary.BigEndian.Uint64(b[8:])
		return
	}
	h.queue = binary.BigEndian.Uint32(b[8:])
	h.msn = binary.BigEndian.Uint32(b[12:])
	h.mo = binary.BigEndian.Uint32(b[16:])
	if h.op == opReadRequest {
		h.stag = binary.BigEndian.Uint32(b[20:])
		h.to = binary.BigEndian.Uint64(b[24:])
		h.size = binary.BigEndian.Uint32(b[32:])
		h.source = binary.BigEndian.Uint32(b[36:])
		h.sourceTo = binary.BigEndian.Uint64(b[40:])
	}
}

// pad is the number of bytes between n bytes of an FPDU and its CRC.
func pad(n int) int { return -n & 3 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// putTrailer writes the padding and the CRC of an FPDU and returns their length. The FPDU has n
// bytes before them with the CRC crc. If use is false, the CRC is zero.
func putTrailer(b []byte, n int, crc uint32, use bool) int {
	p := pad(n)
	clear(b[:p+crcSize])
	if use {
		binary.LittleEndian.PutUint32(b[p:], crc32.Update(crc, castagnoli, b[:p]))
	}
	return p + crcSize
}

// A reason is the error in a Terminate message: layer, type and code (RFC 5040, section 4.8).
type reason uint16

const (
	noReason           reason = 0xffff
	badSourceSTag      reason = 0x0100 // RDMAP, remote protection: invalid STag
	badInvalidate      reason = 0x0109
	badRDMAPVersion    reason = 0x0205 // RDMAP, remote operation
	badOpcode          reason = 0x0206
	badSTag            reason = 0x1100 // DDP, tagged buffer
	badBounds          reason = 0x1101
	badTaggedVersion   reason = 0x1104
	badQueue           reason = 0x1201 // DDP, untagged buffer
	noBuffer           reason = 0x1202
	badMSN             reason = 0x1203
	badOffset          reason = 0x1204
	tooLong            reason = 0x1205
	badUntaggedVersion reason = 0x1206
	localError         reason = 0x1000 // DDP, local catastrophic
	badCRC             reason = 0x2002 // MPA (RFC 5044, section 8)
	badLength          reason = 0x2003
)

// protection reports whether the reason is a remote protection error.
func (r reason) protection() bool { return r>>8 == 0x01 || r>>8 == 0x11 }
