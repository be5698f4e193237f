package association

// Hosts has the controllers of a subsystem by host. Each host has proven its NQN, and has one NQN
// and one Host Identifier (Base section 5.1.25.1.28). The zero value has no controllers. The caller
// serializes its methods.
type Hosts[C comparable] struct {
	byNQN index[string, [16]byte, C]
	byID  index[[16]byte, string, C]
}

// Add adds a controller of a host.
func (h *Hosts[C]) Add(nqn string, id [16]byte, c C) {
	h.byNQN = h.byNQN.add(nqn, id, c)
	h.byID = h.byID.add(id, nqn, c)
}

// Remove undoes Add, if that was called.
func (h *Hosts[C]) Remove(nqn string, id [16]byte, c C) {
	h.byNQN.remove(nqn, id, c)
	h.byID.remove(id, nqn, c)
}

// Other returns a controller of a host with the same NQN and another identifier, or the reverse. It
// returns the zero value if there is none.
func (h *Hosts[C]) Other(nqn string, id [16]byte) (c C) {
	if c = h.byNQN.other(nqn, id); c == *new(C) {
		c = h.byID.other(id, nqn)
	}
	return c
}

// index has controllers by the NQN and then the identifier of their host, or the reverse. No set is
// empty.
type index[K, L, C comparable] map[K]map[L]map[C]struct{}

func (x index[K, L, C]) add(k K, l L, c C) index[K, L, C] {
	if x == nil {
		x = index[K, L, C]{}
	}
	if x[k] == nil {
		x[k] = map[L]map[C]struct{}{}
	}
	if x[k][l] == nil {
		x[k][l] = map[C]struct{}{}
	}
	x[k][l][c] = struct{}{}
	return x
}

func (x index[K, L, C]) remove(k K, l L, c C) {
	if delete(x[k][l], c); len(x[k][l]) == 0 {
		delete(x[k], l)
	}
	if len(x[k]) == 0 {
		delete(x, k)
	}
}

func (x index[K, L, C]) other(k K, l L) (c C) {
	for m, same := range x[k] { // at most two of them
		if m != l {
			for c := range same {
				return c
			}
		}
	}
	return c
}
