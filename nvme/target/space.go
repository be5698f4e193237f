package target

import "github.com/nvmf-target/nvmf-target/backend"

// space is what a thin namespace takes of its storage, and what is left there, in bytes; free is -1
// if that is not known.
type space struct{ allocated, free int64 }

// askSpace asks the device of a thin namespace for its space. It may block.
func (ns *namespace) askSpace() (*space, error) {
	n, err := ns.dev.(backend.Allocator).Allocated()
	if err != nil {
		return nil, err
	}
	s := &space{n, -1}
	if d, ok := ns.dev.(backend.SpaceReporter); ok {
		if free, err := d.FreeSpace(); err == nil {
			s.free = free
		}
	}
	return s, nil
}

// isThin says whether the namespace takes its space as it is written, and can tell how much.
func (ns *namespace) isThin() bool {
	_, ok := ns.dev.(backend.Allocator)
	return ok && ns.geo.Load().info.Thin
}
