// Package tls is what NVMe/TCP uses of TLS 1.3 (RFC 8446) with pre-shared keys (TCP section 3.6.1):
// the choice of the PSK by the ClientHello, and the record layer on non-blocking sockets. The
// handshake itself and AES-GCM are those of OpenSSL.
//
//	hello.go   finds the PSK that a client has
//	server.go  the handshake of a server, and that of a client
//	conn.go    what a connection has after it
//	send.go    seals records
//	receive.go opens them
package tls
