package association

import "math/bits"

// Identifiers are the controller identifiers of a subsystem that are in use. The zero value has
// none. The caller serializes its methods.
type Identifiers struct {
	used []uint64 // a bit for each, as far as there were any
	next int      // where the search goes on, so that an identifier is used again late
}

// Take takes an identifier from first to last. It returns false if all are in use. It takes a step
// for 64 identifiers, of which there are at most 65,536.
func (s *Identifiers) Take(first, last uint16) (id uint16, ok bool) {
	from := s.next
	if from < int(first) || from > int(last) {
		from = int(first)
	}
	n, ok := s.free(from, int(last))
	if !ok {
		n, ok = s.free(int(first), from-1)
	}
	if !ok {
		return 0, false
	}
	for n/64 >= len(s.used) {
		s.used = append(s.used, 0)
	}
	s.used[n/64] |= 1 << (n % 64)
	s.next = n + 1
	return uint16(n), true
}

// free returns the first one from from to last that is not in use.
func (s *Identifiers) free(from, last int) (id int, ok bool) {
	for ; from <= last; from = from&^63 + 64 {
		if from/64 >= len(s.used) {
			return from, true
		}
		if left := ^s.used[from/64] >> (from % 64); left != 0 {
			id = from + bits.TrailingZeros64(left)
			return id, id <= last
		}
	}
	return 0, false
}

// Free ends the use of an identifier.
func (s *Identifiers) Free(id uint16) { s.used[id/64] &^= 1 << (id % 64) }
