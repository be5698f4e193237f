// Package pdu holds the bytes of NVMe/TCP protocol data units, for target and initiator.
//
// A PDU is a common header, a type-specific header, an optional header digest, padding up to the
// data offset, data, and an optional data digest (NVM Express TCP Transport Specification 1.0,
// section 2; "TCP" below). Fixed headers are named arrays with accessor methods; convert once after
// a length check: (*pdu.CapsuleCmd)(b[:pdu.CapsuleCmdSize]). All integers are little-endian.
// Offsets and values agree with the Linux header include/linux/nvme-tcp.h.
package pdu
