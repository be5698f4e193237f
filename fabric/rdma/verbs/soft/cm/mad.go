package cm

import (
	"encoding/binary"
	"net/netip"
)

// madSize is the length of every message.
const madSize = 256

// Fields of the common MAD header (section 13.4.3).
const (
	madBaseVersion  = 1
	madClass        = 0x07 // communication management
	madClassVersion = 2
	madMethodSend   = 3
	madHeader       = 24 // bytes in front of the message
)

// attr is the attribute ID of a MAD: the type of the message (section 16.7.1).
type attr uint16

const (
	attrREQ  attr = 0x10
	attrMRA  attr = 0x11
	attrREJ  attr = 0x12
	attrREP  attr = 0x13
	attrRTU  attr = 0x14
	attrDREQ attr = 0x15
	attrDREP attr = 0x16
)

// layouts has offset and length of the private data of each message, in the order of the attribute
// IDs. Offsets count from the end of the MAD header (section 12.6, tables 106 to 113).
var layouts = [...]struct {
	name         string
	offset, size int
}{
	{"REQ", 140, 92},
	{"MRA", 10, 222},
	{"REJ", 84, 148},
	{"REP", 36, 196},
	{"RTU", 8, 224},
	{"DREQ", 12, 220},
	{"DREP", 8, 224},
}

func (a attr) String() string { return layouts[a-attrREQ].name }

// Values of message.of: the message that an MRA or REJ answers (tables 107 and 108).
const (
	ofREQ = 0
	ofREP = 1
)

// Reasons of a REJ (section 12.6.7.2, table 109).
const (
	rejTimeout          = 4
	rejUnsupported      = 5
	rejInvalidCommID    = 6
	rejInvalidServiceID = 8
	rejInvalidTransport = 9
	rejStale            = 10
	rejInvalidGID       = 12
	rejInvalidMTU       = 26
	rejConsumer         = 28
)

// Private data of a REQ begins with the header of the RDMA IP CM service (section A11.2).
const (
	ipHeader   = 36
	reqPrivate = 92 - ipHeader // left for the program
	repPrivate = 196
	rejPrivate = 148
)

// serviceTCP is the first service ID of the port space RDMA_PS_TCP: the last 16 bits are the port
// (section A11.2.1).
const serviceTCP = 0x0000000001060000

// transportRC is the transport service type of a reliable connection in a REQ.
const transportRC = 0

// A message is a MAD taken apart.
type message struct {
	attr          attr
	tid           uint64
	local, remote uint32 // communication IDs of sender and receiver; a REQ has no remote one
	private       [224]byte

	// REQ and REP
	guid                 uint64 // of the sender's channel adapter
	qpn                  uint32 // of the sender; in a DREQ that of the receiver
	psn                  uint32 // the sender's first
	responder, initiator uint8  // RDMA READs that the sender serves and issues at once
	rnrRetry             uint8
	flowControl, srq     bool

	request
	refusal
	// REP
	ackDelay uint8 // the sender's largest delay of an acknowledgment: 4.096 µs << n
	failover uint8
}

// request has the fields of a REQ alone.
type request struct {
	service      uint64
	remoteWait   uint8 // time that the sender waits for a REP: 4.096 µs << n
	localWait    uint8 // time within which the sender answers a REP
	transport    uint8
	retries      uint8 // of a packet of the connection
	maxCMRetries uint8
	pkey         uint16
	mtu          uint8      // code of the path MTU
	from, to     netip.Addr // GIDs of the primary path, which are IP addresses (section A17.4.5)
	flowLabel    uint32
	trafficClass uint8
	hopLimit     uint8
	ackTimeout   uint8 // of the sender's peer: 4.096 µs << n
}

// refusal has the fields of an MRA or REJ alone.
type refusal struct {
	of       uint8
	wait     uint8 // MRA: 4.096 µs << n
	reason   uint16
	info     [72]byte // REJ: additional information
	infoSize uint8
}

// data returns the private data.
func (m *message) data() []byte { return m.private[:layouts[m.attr-attrREQ].size] }

// encode writes the message to b[:madSize].
func (m *message) encode(b []byte) {
	b = b[:madSize]
	clear(b)
	b[0], b[1], b[2], b[3] = madBaseVersion, madClass, madClassVersion, madMethodSend
	binary.BigEndian.PutUint64(b[8:], m.tid)
	binary.BigEndian.PutUint16(b[16:], uint16(m.attr))
	b = b[madHeader:]
	be := binary.BigEndian
	be.PutUint32(b, m.local)
	if m.attr != attrREQ {
		be.PutUint32(b[4:], m.remote)
	}
	copy(b[layouts[m.attr-attrREQ].offset:], m.data())
	switch m.attr {
	case attrREQ:
		be.PutUint64(b[8:], m.service)
		be.PutUint64(b[16:], m.guid)
		be.PutUint32(b[32:], m.qpn<<8|uint32(m.responder))
		b[39] = m.initiator
		b[43] = m.remoteWait<<3 | m.transport&3<<1 | bit(m.flowControl, 0)
		be.PutUint32(b[44:], m.psn<<8)
		b[47] = m.localWait<<3 | m.retries&7
		be.PutUint16(b[48:], m.pkey)
		b[50] = m.mtu<<4 | m.rnrRetry&7
		b[51] = m.maxCMRetries<<4 | bit(m.srq, 3)
		// Ethernet has no LIDs; Linux sends the permissive one.
		be.PutUint32(b[52:], 0xffffffff)
		putGID(b[56:], m.from)
		putGID(b[72:], m.to)
		be.PutUint32(b[88:], m.flowLabel<<12)
		b[92], b[93] = m.trafficClass, m.hopLimit
		b[95] = m.ackTimeout << 3
	case attrREP:
		be.PutUint32(b[12:], m.qpn<<8)
		be.PutUint32(b[20:], m.psn<<8)
		b[24], b[25] = m.responder, m.initiator
		b[26] = m.ackDelay<<3 | m.failover&3<<1 | bit(m.flowControl, 0)
		b[27] = m.rnrRetry<<5 | bit(m.srq, 4)
		be.PutUint64(b[28:], m.guid)
	case attrMRA:
		b[8], b[9] = m.of<<6, m.wait<<3
	case attrREJ:
		b[8], b[9] = m.of<<6, m.infoSize<<1
		be.PutUint16(b[10:], m.reason)
		copy(b[12:], m.info[:])
	case attrDREQ:
		be.PutUint32(b[8:], m.qpn<<8)
	}
}

// decode takes a MAD apart. It returns false if it is not a message of this version of connection
// management or has an impossible length.
func (m *message) decode(b []byte) bool {
	if len(b) != madSize || b[0] != madBaseVersion || b[1] != madClass || b[2] != madClassVersion ||
		b[3] != madMethodSend {
		return false
	}
	be := binary.BigEndian
	*m = message{attr: attr(be.Uint16(b[16:])), tid: be.Uint64(b[8:])}
	if m.attr < attrREQ || m.attr > attrDREP {
		return false
	}
	b = b[madHeader:]
	m.local = be.Uint32(b)
	if m.attr != attrREQ {
		m.remote = be.Uint32(b[4:])
	}
	copy(m.data(), b[layouts[m.attr-attrREQ].offset:])
	switch m.attr {
	case attrREQ:
		m.service, m.guid = be.Uint64(b[8:]), be.Uint64(b[16:])
		m.qpn, m.responder, m.initiator = be.Uint32(b[32:])>>8, b[35], b[39]
		m.remoteWait, m.transport, m.flowControl = b[43]>>3, b[43]>>1&3, b[43]&1 != 0
		m.psn = be.Uint32(b[44:]) >> 8
		m.localWait, m.retries = b[47]>>3, b[47]&7
		m.pkey = be.Uint16(b[48:])
		m.mtu, m.rnrRetry = b[50]>>4, b[50]&7
		m.maxCMRetries, m.srq = b[51]>>4, b[51]&8 != 0
		m.from, m.to = gid(b[56:]), gid(b[72:])
		m.flowLabel = be.Uint32(b[88:]) >> 12
		m.trafficClass, m.hopLimit, m.ackTimeout = b[92], b[93], b[95]>>3
	case attrREP:
		m.qpn, m.psn = be.Uint32(b[12:])>>8, be.Uint32(b[20:])>>8
		m.responder, m.initiator = b[24], b[25]
		m.ackDelay, m.failover, m.flowControl = b[26]>>3, b[26]>>1&3, b[26]&1 != 0
		m.rnrRetry, m.srq = b[27]>>5, b[27]&0x10 != 0
		m.guid = be.Uint64(b[28:])
	case attrMRA:
		m.of, m.wait = b[8]>>6, b[9]>>3
	case attrREJ:
		m.of, m.infoSize, m.reason = b[8]>>6, b[9]>>1, be.Uint16(b[10:])
		copy(m.info[:], b[12:])
		return int(m.infoSize) <= len(m.info)
	case attrDREQ:
		m.qpn = be.Uint32(b[8:]) >> 8
	}
	return true
}

func bit(on bool, n int) byte {
	if on {
		return 1 << n
	}
	return 0
}

// putGID writes the GID of an address: an IPv4 address is mapped to IPv6 (section A17.4.5.1.1).
func putGID(b []byte, a netip.Addr) {
	g := a.As16()
	copy(b, g[:])
}

func gid(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[:16])).Unmap() }

// ipPrivate is the header of the RDMA IP CM service in the private data of a REQ: versions, the
// port of the sender, and the addresses of both sides.
type ipPrivate struct {
	port     uint16
	from, to netip.Addr
}

func (p *ipPrivate) encode(b []byte) {
	b = b[:ipHeader]
	clear(b)
	binary.BigEndian.PutUint16(b[2:], p.port)
	for i, a := range []netip.Addr{p.from, p.to} {
		at := b[4+16*i:]
		if a.Is4() {
			b[1] = 4 << 4
			v := a.As4()
			copy(at[12:], v[:])
		} else {
			b[1] = 6 << 4
			putGID(at, a)
		}
	}
}

// decode reads the header. It reports false if the version is not 0.0, or the IP version is neither
// 4 nor 6.
func (p *ipPrivate) decode(b []byte) bool {
	p.port = binary.BigEndian.Uint16(b[2:])
	if b[0] != 0 {
		return false
	}
	switch b[1] >> 4 {
	case 4:
		p.from, p.to = netip.AddrFrom4([4]byte(b[16:20])), netip.AddrFrom4([4]byte(b[32:36]))
	case 6:
		p.from, p.to = gid(b[4:]), gid(b[20:])
	default:
		return false
	}
	return true
}

// mtuCode returns the code of a path MTU, 1 for 256 to 5 for 4096 (section 12.7.23).
func mtuCode(mtu int) uint8 {
	code := uint8(0)
	for ; mtu >= 256 && code < 5; mtu >>= 1 {
		code++
	}
	return code
}

// mtuOf returns the path MTU of a code, 0 for an invalid code.
func mtuOf(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}
