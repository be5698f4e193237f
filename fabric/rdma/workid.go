package rdma

import "iter"

// A work request ID says what completed: the kind in bits 63:56, then the ID that a table gave the
// queue or shared receive queue, and the tag of a request or the number of a receive slot in 15:0.
type workKind uint8

const (
	workRecv       workKind = 1 + iota // a receive of a queue
	workSRQRecv                        // a receive of a shared receive queue
	workUnsignaled                     // completes only if it fails
	workRead                           // the last RDMA READ of a chain
	workWrite                          // the last RDMA WRITE of a chain that has no response
	workSend                           // a response
	workData                           // an RDMA WRITE that is signaled for the device's sake
)

var workNames = [...]string{
	"", "receive", "receive", "data transfer", "RDMA READ", "RDMA WRITE", "response", "RDMA WRITE",
}

func (k workKind) String() string {
	if int(k) < len(workNames) {
		return workNames[k]
	}
	return "work"
}

func workID(k workKind, id uint64, tag uint16) uint64 { return uint64(k)<<56 | id | uint64(tag) }

// table gives IDs to what completions refer to: a generation in bits 55:32 and a number in 31:16.
// Numbers are used again, with another generation: a late completion of what was removed matches
// nothing.
type table[T any] struct {
	entries []entry[T]
	free    []int // numbers of entries without an element
}

type entry[T any] struct {
	v   *T
	gen uint32
}

const genMask = 1<<24 - 1

// add returns the ID of v.
func (t *table[T]) add(v *T) uint64 {
	n := len(t.entries)
	if last := len(t.free) - 1; last >= 0 {
		n, t.free = t.free[last], t.free[:last]
	} else {
		t.entries = append(t.entries, entry[T]{})
	}
	e := &t.entries[n]
	e.v, e.gen = v, (e.gen+1)&genMask
	return uint64(e.gen)<<32 | uint64(n)<<16
}

func (t *table[T]) remove(id uint64) {
	n := int(uint16(id >> 16))
	t.entries[n].v = nil
	t.free = append(t.free, n)
}

// find returns what a work request ID refers to, nil if that was removed.
func (t *table[T]) find(wrid uint64) *T {
	if n := int(uint16(wrid >> 16)); n < len(t.entries) {
		if e := &t.entries[n]; e.gen == uint32(wrid>>32)&genMask {
			return e.v
		}
	}
	return nil
}

// all yields everything in the table. Elements may be added and removed meanwhile.
func (t *table[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := 0; i < len(t.entries); i++ {
			if v := t.entries[i].v; v != nil && !yield(v) {
				return
			}
		}
	}
}

// walk returns what list.Pieces needs to visit everything in the table. visit returns how many
// steps it took.
func (t *table[T]) walk(visit func(*T) int) (next func() int) {
	i := 0
	return func() int {
		if i == len(t.entries) {
			return 0
		}
		v := t.entries[i].v
		if i++; v == nil {
			return 1
		}
		return visit(v)
	}
}

func (t *table[T]) len() int { return len(t.entries) - len(t.free) }
