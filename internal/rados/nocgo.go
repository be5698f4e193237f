//go:build !cgo

package rados

// Cluster does not exist here.
type Cluster struct{}

// FSID is empty, since no cluster can be connected to.
func (*Cluster) FSID() string { return "" }

// Retired reports whether the connection is fenced.
func (*Cluster) Retired() bool { return false }
