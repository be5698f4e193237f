// Package rados keeps groups of gateways in a Ceph cluster: the record in an object, the lease as
// the lock of another one, and fences as entries of the cluster's blocklist.
package rados

import (
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

// Object is the name of the object with the record.
func (c *Config) Object() string {
	if c.Group == 0 {
		return "nvmf." + string(c.Shared)
	}
	return fmt.Sprintf("nvmf.group.%d", c.Group)
}
