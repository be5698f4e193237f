package target

import "github.com/nvmf-target/nvmf-target/backend"

// space is what a thin namespace takes of its storage, and what is left there, in bytes; free is -1
// if that is not known.
type space struct{ allocated, free int64 }

// askSpace asks the device of a thin namespace for its space. It may block.
func (ns *namespace) askSpace() (*space, error) {
	allocated, free, err := ns.dev.(backend.SpaceReporter).Space()
	if err != nil {
		return nil, err
	}
	return &space{allocated, free}, nil
}

// isThin says whether the namespace takes its space as it is written, and can tell how much.
func (ns *namespace) isThin() bool {
	_, ok := ns.dev.(backend.SpaceReporter)
	return ok && ns.geo.Load().info.Thin
}
