// Package rados keeps groups of gateways in a Ceph cluster: the record in an object, the lease as
// the lock of another one, and fences as entries of the cluster's blocklist.
package rados

import (
	"context"
	"fmt"

	"github.com/nvmf-target/nvmf-target/internal/rados"
)

// Config describes the place of a group.
type Config struct {
	Access rados.Access
	// Pool has the objects of the group.
	Pool string
	// Group is its number. It is 0 for something that all gateways share.
	Group uint32
	// Shared is its name.
	Shared Shared
}

// Shared is the name of something that all gateways share.
type Shared string

const (
	// Configuration has subsystems and hosts.
	Configuration Shared = "configuration"
	// Controllers has the numbers of gateways, see group.Number.
	Controllers Shared = "controllers"
)

// Object is an object of a cluster, see rados.Object.
type Object interface {
	Read(ctx context.Context, most int) ([]byte, uint64, error)
	Write(ctx context.Context, data []byte, version uint64) (uint64, error)
	// FenceSelf fences the connection, which ends its calls.
	FenceSelf() error
	// Close waits until the calls that have begun have ended.
	Close()
}

// Object is the name of the object with the record.
func (c *Config) Object() string {
	if c.Group == 0 {
		return "nvmf." + string(c.Shared)
	}
	return fmt.Sprintf("nvmf.group.%d", c.Group)
}
