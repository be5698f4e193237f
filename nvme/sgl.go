package nvme

import "encoding/binary"

// SGLDescriptorSize is the size of an SGL descriptor in bytes (Base section 4.3.2).
const SGLDescriptorSize = 16

// SGLDescriptor is an SGL descriptor; byte 15 has type (bits 7:4) and subtype (bits 3:0).
type SGLDescriptor [SGLDescriptorSize]byte

// SGLType is the descriptor type, bits 7:4 of byte 15 (Base figure 115).
type SGLType uint8

// The descriptor types.
const (
	SGLDataBlock          SGLType = 0x0
	SGLBitBucket          SGLType = 0x1
	SGLSegment            SGLType = 0x2
	SGLLastSegment        SGLType = 0x3
	SGLKeyedDataBlock     SGLType = 0x4
	SGLTransportDataBlock SGLType = 0x5
)

// The subtypes, bits 3:0 of byte 15 (Base figure 116; RDMA section 3.3, Invalidate Key).
const (
	SGLSubtypeAddress    = 0x0
	SGLSubtypeOffset     = 0x1
	SGLSubtypeTransport  = 0xA // TCP: data in the capsule or by R2T
	SGLSubtypeInvalidate = 0xF // keyed data block: invalidate the key with the response
)

func (d *SGLDescriptor) Type() SGLType { return SGLType(d[15] >> 4) }

func (d *SGLDescriptor) Subtype() uint8 { return d[15] & 0xF }

// Address is bytes 0 to 7: an address, or an offset into the capsule for SGLSubtypeOffset.
func (d *SGLDescriptor) Address() uint64 { return binary.LittleEndian.Uint64(d[0:]) }

// Length is the length of an unkeyed descriptor, bytes 8 to 11.
func (d *SGLDescriptor) Length() uint32 { return binary.LittleEndian.Uint32(d[8:]) }

// KeyedLength is the 24-bit length of a keyed data block, bytes 8 to 10.
func (d *SGLDescriptor) KeyedLength() uint32 {
	return uint32(d[8]) | uint32(d[9])<<8 | uint32(d[10])<<16
}

// Key is the remote key of a keyed data block, bytes 11 to 14.
func (d *SGLDescriptor) Key() uint32 { return binary.LittleEndian.Uint32(d[11:]) }

// SetData makes an unkeyed descriptor.
func (d *SGLDescriptor) SetData(t SGLType, subtype uint8, addr uint64, length uint32) {
	*d = SGLDescriptor{}
	binary.LittleEndian.PutUint64(d[0:], addr)
	binary.LittleEndian.PutUint32(d[8:], length)
	d[15] = byte(t)<<4 | subtype
}

// SetKeyed makes a keyed data block; length must be below 1<<24.
func (d *SGLDescriptor) SetKeyed(subtype uint8, addr uint64, length, key uint32) {
	binary.LittleEndian.PutUint64(d[0:], addr)
	d[8], d[9], d[10] = byte(length), byte(length>>8), byte(length>>16)
	binary.LittleEndian.PutUint32(d[11:], key)
	d[15] = byte(SGLKeyedDataBlock)<<4 | subtype
}
