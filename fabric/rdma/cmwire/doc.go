// Package cmwire has the private data of NVMe/RDMA in the messages of the RDMA communication
// manager: connect request, accept and reject (NVM Express RDMA Transport Specification 1.0,
// section 3.1.4, figures 5 to 7). All fields are little-endian.
//
// The fields of a record have the order and the widths that they have on the wire.
package cmwire

import "encoding/binary"

// Parse reads a record from the private data that the communication manager has received, which
// some fabrics pad with zeroes to a fixed size. ok is false if that is too short: then a reject is
// of the fabric, not of the target.
func Parse[T Req | Rep | Rej](b []byte) (r T, ok bool) {
	_, err := binary.Decode(b, binary.LittleEndian, &r)
	return r, err == nil
}

// Bytes returns the private data with a record.
func Bytes[T Req | Rep | Rej](r T) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, r) // the sizes are fixed
	return b
}
