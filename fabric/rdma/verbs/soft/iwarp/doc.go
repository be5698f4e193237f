// Package iwarp implements reliable connections over ordinary TCP sockets: RDMAP (RFC 5040) on DDP
// (RFC 5041), in FPDUs of MPA (RFC 5044). Package mpa makes the connections.
//
// A message is cut into segments, and each travels in one FPDU:
//
//	length  2   number of bytes from the control field to the end of the payload
//	control 2   tagged or not, last segment, operation
//	header      tagged: STag, offset in its memory (WRITE, READ response)
//	            untagged: queue, message number, offset (SEND, READ request, Terminate)
//	payload     padded to a multiple of four bytes
//	CRC     4   CRC32c of everything before, if the sides have agreed on it
//
// Sending (send.go): a turn gathers FPDUs of the responses to READs and of the send queue. Their
// headers are in a buffer of the engine, their payload in registered memory, and one call passes
// them to the socket. The socket copies, so a SEND or WRITE is complete when the socket has its
// last byte. If the socket takes a part of an FPDU, the rest is built again from its place in the
// stream.
//
// Receiving (receive.go): a turn reads the bytes that have arrived into a buffer of the engine. If
// the header is known already, the payload goes directly to its memory. An FPDU is handled while
// its bytes come in, and its message is complete only if the CRC is right.
//
// TCP keeps the order and retransmits, so there are no timers. An error of the peer is answered
// with a Terminate message, and the connection ends. A queue pair holds its queues, and one entry
// for each READ that the peer may have outstanding. A peer cannot make it hold more.
package iwarp
