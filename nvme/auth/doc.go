// Package auth is in-band authentication of NVMe over Fabrics: the protocol DH-HMAC-CHAP with its
// keys and messages (NVM Express Base Specification 2.1, section 8.3.4.5), on the side of the
// controller and on that of the host.
//
// Controller and Host process messages and know nothing of queues. They compute for milliseconds,
// so they do not belong on a reactor. Each belongs to one goroutine at a time.
//
// The arithmetic is that of crypto/hmac and of filippo.io/bigmod, whose running time does not
// depend on secrets. What exists only during an exchange is wiped when that has ended.
package auth
