// Package wire carries RoCEv2 packets: InfiniBand transport packets in UDP datagrams to port 4791
// (InfiniBand Architecture Specification, volume 1, release 1.4, Annex A17).
//
// This is the path of a packet from Alloc to Recv:
//
//	Conn.Alloc   room for the packet in the batch of the sending Conn
//	  caller     writes BTH, the extended headers of the opcode and the payload
//	Conn.Flush   adds the ICRC, which also covers the addresses and ports, and sends the batch
//	  network    IP header, UDP header, then the bytes above
//	Conn.Recv    finds the socket by destination queue pair, checks the ICRC and cuts it off
//	  caller     takes the headers apart (packet.Header)
//
// NewUDP sends with ordinary sockets, without privileges. Tests use the network of wiretest.
//
// Sections in the comments of this package refer to the specification above.
package wire
