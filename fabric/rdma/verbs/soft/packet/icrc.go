package packet

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// The ICRC (invariant CRC, section 7.8.1 and, for RoCEv2, A17.3.3) is the CRC-32 of Ethernet over
//
//	8 bytes of ones, in the place of the LRH of InfiniBand
//	the IP and UDP headers
//	the packet from BTH to the padding
//
// where the fields that a router may change count as ones: type of service, time to live and header
// checksum of IPv4; traffic class, flow label and hop limit of IPv6; the UDP checksum; byte 4 of
// the BTH, which has FECN and BECN. It follows the padding with its least significant byte first.
//
// The identification of the IPv4 header is covered, but a UDP socket neither sets nor shows it. We
// send 0: Linux does so for a socket that is not connected, if it does not fragment. The packets of
// one send with UDP_SEGMENT have 0, 1, 2 and so on. Other senders count.
//
// A CRC is linear: the difference between the ICRC received and the one with the identification 0
// depends only on the identification and the number of bytes after it. So Check finds the
// identification with one multiplication. Of 2^32 wrong ICRCs, 2^16 pass then, because they fit
// some identification.

// afterLRH is the CRC of the eight bytes of ones.
const afterLRH = 0x2144df1c

// ICRCSize is the number of bytes of the checksum.
const ICRCSize = 4

const (
	ip4Size  = 20
	ip6Size  = 40
	udpSize  = 8
	idToUDP  = ip4Size - 4 // bytes from the identification to the end of the header
	protoUDP = 17
	poly     = crc32.IEEE // x^32 is not stored; the coefficient of x^0 is the highest bit
	polyOne  = 1 << 31    // the polynomial 1
)

// An ICRC computes the checksums of packets with the same addresses and ports. It lies in memory
// that lives long, since crc32.Update makes its argument escape. One goroutine at a time uses it.
type ICRC struct {
	header [ip6Size + udpSize]byte
	ip     int    // bytes of the IP header
	id     uint32 // the difference that the identification makes to crc
	// crc is the CRC of the headers with the identification 0, for packets of this length. It is
	// not known if that is 0.
	length int
	crc    uint32
}

// Set fills in addresses and source port. Both addresses are of one family, and an IPv4 address is
// not mapped to IPv6.
func (v *ICRC) Set(src, dst netip.Addr, srcPort, dstPort uint16) {
	v.id, v.length = 0, 0
	h := v.header[:]
	if src.Is4() {
		v.ip = ip4Size
		s, d := src.As4(), dst.As4()
		h[0], h[1] = 0x45, 0xff                  // version, header length; type of service
		binary.BigEndian.PutUint16(h[4:], 0)     // identification
		binary.BigEndian.PutUint16(h[6:], 1<<14) // do not fragment
		h[8], h[9], h[10], h[11] = 0xff, protoUDP, 0xff, 0xff
		copy(h[12:], s[:])
		copy(h[16:], d[:])
	} else {
		v.ip = ip6Size
		s, d := src.As16(), dst.As16()
		h[0], h[1], h[2], h[3] = 0x6f, 0xff, 0xff, 0xff
		h[6], h[7] = protoUDP, 0xff
		copy(h[8:], s[:])
		copy(h[24:], d[:])
	}
	u := h[v.ip:]
	binary.BigEndian.PutUint16(u, srcPort)
	binary.BigEndian.PutUint16(u[2:], dstPort)
	u[6], u[7] = 0xff, 0xff
}

// Identify sets the identification, which is 0 after set.
func (v *ICRC) Identify(id uint16) {
	v.id = 0
	for ; id != 0 && v.ip == ip4Size; id &= id - 1 {
		v.id ^= idBits[bits.TrailingZeros16(id)]
	}
}

// idBits is the difference that each bit of the identification makes to the CRC of the headers.
var idBits = func() (t [16]uint32) {
	var b [idToUDP + udpSize]byte
	zero := crc32.ChecksumIEEE(b[:])
	for i := range t {
		binary.BigEndian.PutUint16(b[:], 1<<i)
		t[i] = crc32.ChecksumIEEE(b[:]) ^ zero
	}
	return t
}()

// sum computes the ICRC of packet b, from BTH to the padding. It changes b[4] during the call.
func (v *ICRC) sum(b []byte) uint32 {
	if len(b) != v.length {
		v.measure(len(b))
	}
	masked := b[4]
	b[4] = 0xff
	crc := crc32.Update(v.crc^v.id, crc32.IEEETable, b)
	b[4] = masked
	return crc
}

// measure sums the headers in front of packets of a length.
func (v *ICRC) measure(length int) {
	h := v.header[:v.ip+udpSize]
	udp := udpSize + length + ICRCSize
	if v.ip == ip4Size {
		binary.BigEndian.PutUint16(h[2:], uint16(ip4Size+udp))
	} else {
		binary.BigEndian.PutUint16(h[4:], uint16(udp))
	}
	binary.BigEndian.PutUint16(h[v.ip+4:], uint16(udp))
	v.length, v.crc = length, crc32.Update(afterLRH, crc32.IEEETable, h)
}

// Put writes the ICRC after the packet: b is the packet with four bytes more.
func (v *ICRC) Put(b []byte) {
	n := len(b) - ICRCSize
	binary.LittleEndian.PutUint32(b[n:], v.sum(b[:n]))
}

// Check reports whether the last four bytes of b are the ICRC of the others. With anyID, an IPv4
// packet may have any identification.
func (v *ICRC) Check(b []byte, anyID bool) bool {
	n := len(b) - ICRCSize
	diff := v.sum(b[:n]) ^ binary.LittleEndian.Uint32(b[n:])
	if diff == 0 {
		return true
	}
	if !anyID || v.ip != ip4Size {
		return false
	}
	_, ok := identification(diff, n)
	return ok
}

// identification returns the identification that changes the ICRC of a packet of n bytes by diff.
// It reports false if there is none.
//
// The next four bytes may be added to the register of the CRC at once, the first in the lowest
// byte. So another identification is a difference in the lower 16 bits of the register in front of
// it. The k bytes from there to the end multiply the difference by x^8k, modulo the generator.
// Hence diff * x^-8k is zero in the upper 16 bits.
func identification(diff uint32, n int) (id uint16, ok bool) {
	register := multiply(diff, backwards[n/4])
	return bits.ReverseBytes16(uint16(register)), register>>16 == 0
}

// backwards[i] is x^-8k for a packet of 4i bytes, where k is the number of bytes from the
// identification to the padding.
var backwards = func() (t [MaxSize/4 + 1]uint32) {
	p := uint32(polyOne)
	for range 8 * (idToUDP + udpSize) {
		p = divideX(p)
	}
	for i := range t {
		t[i] = p
		for range 32 {
			p = divideX(p)
		}
	}
	return t
}()

// divideX divides by x modulo the generator: in the reflected form a shift to the left.
func divideX(p uint32) uint32 {
	if p&polyOne != 0 { // the generator ends in 1: add it, and the sum is divisible
		return (p^poly)<<1 | 1
	}
	return p << 1
}

// multiplyX multiplies a polynomial by x, modulo the generator.
func multiplyX(p uint32) uint32 { return p>>1 ^ poly&-(p&1) }

// multiply multiplies two polynomials modulo the generator.
func multiply(a, b uint32) (product uint32) {
	for range 32 {
		product ^= b & -(a >> 31)
		a <<= 1
		b = multiplyX(b)
	}
	return product
}
