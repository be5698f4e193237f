package target

import "github.com/nvmf-target/nvmf-target/backend"

// space is what a thin namespace takes of its storage, and what is left there, in bytes.
type space struct{ allocated, free int64 }

// measureSpace asks the device of a thin namespace for its space. It may block.
func (ns *namespace) measureSpace() {
	used, ok := ns.dev.(backend.Allocator)
	left, ok2 := ns.dev.(backend.SpaceReporter)
	if !ok || !ok2 || !ns.geo.Load().info.Thin {
		return
	}
	a, err := used.Allocated()
	f, err2 := left.FreeSpace()
	if err != nil || err2 != nil {
		ns.space.Store(nil)
		return
	}
	ns.space.Store(&space{a, f})
}
