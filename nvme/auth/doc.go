// Package auth implements in-band authentication of NVMe over Fabrics: the protocol DH-HMAC-CHAP
// with its keys and messages (NVM Express Base Specification 2.1, section 8.3.4.5), for the
// controller and for the host.
//
// Controller and Host process messages and know nothing of queues. Their computations take
// milliseconds, so they do not belong on a reactor. One goroutine at a time may use each.
//
// The arithmetic is that of crypto/hmac and of filippo.io/bigmod. Its running time does not depend
// on secrets. The secrets of an exchange are wiped when it has ended.
package auth
