//go:build !cgo

// Package ibv binds verbs to rdma-core. Built without cgo, it has no RDMA devices.
package ibv

import "github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"

type provider struct{}

// New returns a provider. All of its calls fail with verbs.ErrNotBuilt.
func New() verbs.Provider { return provider{} }

func (provider) Devices() ([]verbs.DeviceAttr, error) { return nil, verbs.ErrNotBuilt }
func (provider) NewCM() (verbs.CM, error)             { return nil, verbs.ErrNotBuilt }
