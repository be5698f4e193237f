package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// space is the storage space that a thin namespace takes, and the space left there, in bytes; free
// is -1 if it is not known.
type space struct{ allocated, free int64 }

// newSpaceQuery asks a device for its space; nil if it cannot tell.
func newSpaceQuery(dev backend.Device) *admin.Query[space] {
	d, ok := dev.(backend.SpaceReporter)
	if !ok {
		return nil
	}
	return &admin.Query[space]{Ask: func() (*space, error) {
		allocated, free, err := d.Space()
		if err != nil {
			return nil, err
		}
		return &space{allocated, free}, nil
	}}
}

// thin returns the query of a namespace that takes its space as it is written, and can tell how
// much; otherwise nil.
func (ns *namespace) thin() *admin.Query[space] {
	if !ns.geo.Load().info.Thin {
		return nil
	}
	return ns.cfg.Load().space
}
