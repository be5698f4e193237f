//go:build !cgo

package rados

// Cluster does not exist here.
type Cluster struct{}
