// Package iwarp is reliable connections over ordinary TCP sockets: RDMAP (RFC 5040) on DDP (RFC
// 5041), in FPDUs of MPA (RFC 5044). Package mpa makes the connections.
//
// A message is cut into segments, and each travels in one FPDU:
//
//	length  2   of everything up to the payload's end, without itself
//	control 2   tagged or not, last segment, operation
//	header      tagged: STag, offset in its memory (WRITE, READ response)
//	            untagged: queue, message number, offset (SEND, READ request, Terminate)
//	payload     padded to a multiple of four bytes
//	CRC     4   CRC32c of everything before, if the sides have agreed on it
//
// Sending (send.go): a turn gathers FPDUs from the responses to READs and the send queue, headers
// from a buffer of the engine and payload from registered memory, and passes them to the socket
// with one call. The socket copies, so a SEND or WRITE is complete when its last byte is in. The
// rest of an FPDU that the socket takes in part is made again from its place in the stream.
//
// Receiving (receive.go): a turn reads the bytes that have arrived to a buffer of the engine;
// payload behind a known header goes to its memory directly. An FPDU is handled while its bytes
// come in, and its message is complete only if the CRC is right.
//
// TCP keeps order and repeats, so there are no timers. An error of the peer is answered with a
// Terminate message, and the connection ends. A peer cannot make a queue pair hold more than it was
// created with, and one entry for each READ that the peer may have outstanding.
package iwarp
