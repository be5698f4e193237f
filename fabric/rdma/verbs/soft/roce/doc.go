// Package roce implements the reliable-connection queue pair of RoCEv2: SEND, SEND with invalidate,
// RDMA WRITE and RDMA READ between two queue pairs, in order and exactly once, over a network that
// may lose, double, delay, reorder and corrupt packets.
//
// A queue pair has two halves, which share nothing but the connection:
//
//	requester   PostSend ─> send queue ─> request packets ─────────> responder of the peer
//	            completion <─ send queue <─ ACK, NAK, READ response <─┘
//	responder   receive queue, memory <─ request packets <────────── requester of the peer
//	            └─> ACK, NAK, READ responses ───────────────────────> ┘
//
// Every request packet has a packet sequence number (PSN). A READ request takes as many PSNs as its
// response has packets, and each response packet has one of them. The requester keeps
//
//	una ≤ next ≤ max   oldest PSN not acknowledged, next PSN to send, end of the PSNs ever sent
//
// and sends while the distance from una to next is within its window. The responder executes only
// the packet with the PSN that it expects. If it gets a later packet, it sends a NAK, once, because
// packets in between are lost. An earlier packet is a duplicate: the responder acknowledges it
// again, or answers its READ again. The requester goes back to una after a NAK, after an
// acknowledgment that skips the data of a READ (an implied NAK), and when nothing was acknowledged
// for too long: "go-back-N".
//
// A SEND of several packets has FIRST, MIDDLE and LAST. Each packet of a WRITE is a separate
// message (ONLY), so that all packets have the same length.
//
// The responder acknowledges once for all packets that the engine received together. The ACK may
// wait for a few turns of the engine, to leave with other packets. Responses are in the order of
// PSNs: an ACK or NAK waits until the READs before it are answered.
//
// Three things end a connection: an error of a local work request, an error that the peer reports
// by a NAK, and an error in a request of the peer, which gets a NAK. The queue pair then goes to
// the error state, where everything posted completes as flushed. After an error in a request, the
// responder continues to repeat its NAK for packets that come, because the first may be lost.
//
// A peer cannot make a queue pair hold more than it was created with: the send and receive queues
// and one entry for each READ the peer may have outstanding. Nothing of a packet that is not
// executed is stored. A packet causes at most one ACK, NAK or CNP, and READ responses to memory the
// peer may read.
//
// Sections in comments are sections of the InfiniBand Architecture Specification, volume 1, release
// 1.4.
package roce
