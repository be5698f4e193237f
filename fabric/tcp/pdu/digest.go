package pdu

import (
	"encoding/binary"
	"hash/crc32"
)

// DigestSize is the size of a header or data digest: a CRC32C, little-endian (TCP section 3.3.1.1).
const DigestSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC continues the CRC32C crc over b; start with 0. A data digest may be built piece by piece.
func CRC(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// PutCRC writes a finished digest in wire format.
func PutCRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// GetCRC reads a digest from the wire.
func GetCRC(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// PutHeaderDigest writes the digest of b[:hlen] to b[hlen:hlen+4].
func PutHeaderDigest(b []byte, hlen int) { PutCRC(b[hlen:hlen+DigestSize], CRC(0, b[:hlen])) }

// HeaderDigestOK compares the digest at b[hlen:hlen+4] with b[:hlen].
func HeaderDigestOK(b []byte, hlen int) bool {
	return GetCRC(b[hlen:hlen+DigestSize]) == CRC(0, b[:hlen])
}
