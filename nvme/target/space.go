package target

import "github.com/nvmf-target/nvmf-target/backend"

// space is what a thin namespace takes of its storage, and what is left there, in bytes.
type space struct{ allocated, free int64 }

// measureSpace asks the device of a thin namespace for its space. It may block.
func (ns *namespace) measureSpace() {
	dev, ok := ns.dev.(backend.SpaceReporter)
	if !ok || !ns.geo.Load().info.Thin {
		return
	}
	allocated, free, err := dev.Space()
	if err != nil {
		ns.space.Store(nil)
		return
	}
	ns.space.Store(&space{allocated, free})
}
