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
type table[T any] struct{ entries []entry[T] }

type entry[T any] struct {
	v   *T
	gen uint32
}

const genMask = 1<<24 - 1

// add returns the ID of v.
func (t *table[T]) add(v *T) uint64 {
	n := 0
	for n < len(t.entries) && t.entries[n].v != nil {
		n++
	}
	if n == len(t.entries) {
		t.entries = append(t.entries, entry[T]{})
	}
	e := &t.entries[n]
	e.v, e.gen = v, (e.gen+1)&genMask
	return uint64(e.gen)<<32 | uint64(n)<<16
}

func (t *table[T]) remove(id uint64) { t.entries[uint16(id>>16)].v = nil }

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

func (t *table[T]) len() (n int) {
	for range t.all() {
		n++
	}
	return n
}
