// Package tls implements the part of TLS 1.3 (RFC 8446) with pre-shared keys that NVMe/TCP uses
// (TCP section 3.6.1): the choice of the PSK by the ClientHello, and the record layer on
// non-blocking sockets. OpenSSL does the rest of the handshake, and AES-GCM.
//
//	hello.go   finds the PSK that a client has
//	server.go  the handshake of a server, and that of a client
//	conn.go    a connection after its handshake
//	send.go    seals records
//	receive.go opens them
package tls
