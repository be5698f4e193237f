// Package mpa makes and ends iWARP connections in user space: MPA, the layer between DDP and TCP
// (RFC 5044), with the enhanced connection set-up of RFC 6581. It implements verbs.CM and verbs.ID.
//
// The active side is on the left. There is one TCP connection:
//
//	Connect       MPA Request ->             ConnectRequest; CreateQP
//	                          <- MPA Reply   Accept; the queue pair has the socket
//	queue pair has the socket
//	Established   RTR         ->             Established (without RTR: when the reply is sent)
//
//	Disconnect    FIN         ->             Disconnected; the queue pair fails
//
// The request has three settings: whether its sender wants checksums, how many RDMA READs each side
// does at once and, in peer-to-peer mode, the message by which its sender will show that it is
// ready (RTR). Markers are refused: no device needs them.
//
// Until its request has arrived, a connection has a goroutine and a deadline. The number of such
// connections is bounded, and a new one takes the place of the oldest (limits.go). The socket of an
// established connection belongs to its queue pair. A socket that is closed is drained for a
// moment, so that the last bytes arrive before the peer sees the end.
package mpa
