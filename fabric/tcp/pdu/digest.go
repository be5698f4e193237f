package pdu

import (
	"encoding/binary"
	"hash/crc32"
)

// DigestSize is the size of a header or data digest: a CRC32C, little-endian (TCP section 3.3.1.1).
const DigestSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC continues the CRC32C crc over b; start with 0. A data digest may be built piece by piece.
func CRC(crc uint32, b []byte) uint32 {
	for len(b) > loadMin {
		n := min(len(b), loadMost)
		load(b[:n])
		crc, b = crc32.Update(crc, castagnoli, b[:n]), b[n:]
	}
	return crc32.Update(crc, castagnoli, b)
}

// Package crc32 reads three places of its input in turn, which processors do not prefetch. If the
// data is not in the caches, it is faster to load it first, in order: 128 KiB take 8 µs instead of
// 20 (docs/experiments/tcp.md).
const (
	loadMin  = 512
	loadMost = 4096 // fits into any cache
)

// load reads from each cache line of b. It is not inlined, because then the reads would be removed.
//
//go:noinline
func load(b []byte) (sum byte) {
	for i := 0; i < len(b); i += 64 {
		sum += b[i]
	}
	return sum
}

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
