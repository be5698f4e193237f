// Package rados connects to Ceph clusters. It loads librados when the first connection is made, so
// machines without Ceph do not need the library. It needs cgo.
//
// librados itself may wait for minutes. Every call that waits takes a context, or has the limit
// that its comment gives.
package rados

// Access describes the access to a cluster.
type Access struct {
	// Conf is the path of its ceph.conf.
	Conf string
	// User is the name of a client without "client.".
	User string
	// Keyring is the path of the file with the client's key; "": the one that Conf names.
	Keyring string
}

// Journal keeps the addresses of connections that may write, beyond the end of the process. A
// connection is added before its first write, and removed when its writes have ended or are
// refused.
type Journal interface {
	// Earlier returns the addresses of connections of earlier processes to a cluster.
	Earlier(fsid string) []string
	AddConnection(fsid, addr string) error
	RemoveConnection(fsid, addr string) error
}
