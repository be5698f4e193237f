package rdma

import "iter"

// A work request ID identifies a completion: the kind in bits 63:56, then the ID of the queue or
// shared receive queue in its table, and in bits 15:0 the tag of a request or the number of a
// receive slot.
type workKind uint8

const (
	workRecv       workKind = 1 + iota // a receive of a queue
	workSRQRecv                        // a receive of a shared receive queue
	workUnsignaled                     // completes only if it fails
	workRead                           // the last RDMA READ of a chain
	workWrite                          // the last RDMA WRITE of a chain without a response
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

// table assigns IDs to the objects of completions: a generation in bits 55:32 and a number in
// 31:16. Numbers are reused with another generation, so a late completion of a removed object
// matches nothing.
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

// find returns the object of a work request ID, nil if it was removed.
func (t *table[T]) find(wrid uint64) *T {
	if n := int(uint16(wrid >> 16)); n < len(t.entries) {
		if e := &t.entries[n]; e.gen == uint32(wrid>>32)&genMask {
			return e.v
		}
	}
	return nil
}

// all yields everything in the table. Elements may be added and removed in the loop.
func (t *table[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := 0; i < len(t.entries); i++ {
			if v := t.entries[i].v; v != nil && !yield(v) {
				return
			}
		}
	}
}

// walk returns a function for list.Pieces that visits the table. visit returns its steps.
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
