package list

import (
	"sync/atomic"
	"unsafe"
)

// Inbox carries elements from any goroutine to their owner, usually a reactor. It takes no locks,
// and no operation depends on the number of elements. The zero Inbox is empty. The caller of Push
// wakes the owner afterwards.
type Inbox[T any] struct {
	// last is the newest element, nil if there is none; the next Push adds its element after it.
	// first is the element pushed into the empty Inbox, until the owner has made it its head.
	last, first atomic.Pointer[Node[T]]
	head        *Node[T] // the owner's
}

// Push adds v; n is its node, which is on no list. Any goroutine may call it.
func (b *Inbox[T]) Push(v *T, n *Node[T]) {
	n.mustBe(false)
	n.value, n.next = v, nil
	if before := b.last.Swap(n); before != nil {
		atomic.StorePointer(before.link(), unsafe.Pointer(n))
		return
	}
	b.first.Store(n)
}

// Empty reports whether all pushed elements have been taken out. Any goroutine may call it.
func (b *Inbox[T]) Empty() bool { return b.last.Load() == nil }

// Newest returns the element pushed last, nil if there is none. Only the owner calls it.
func (b *Inbox[T]) Newest() *T {
	if n := b.last.Load(); n != nil {
		return n.value
	}
	return nil
}

// Pop removes and returns the oldest element. It returns nil if there is none yet: Empty may
// already count a Push that has not returned. Only the owner calls it.
func (b *Inbox[T]) Pop() *T {
	v, _ := b.pop()
	return v
}

// pop is Pop and also returns the node of the element.
func (b *Inbox[T]) pop() (v *T, h *Node[T]) {
	if b.head == nil {
		if b.head = b.first.Load(); b.head == nil {
			return nil, nil
		}
		b.first.Store(nil)
	}
	h = b.head
	next := (*Node[T])(atomic.LoadPointer(h.link()))
	if next == nil && !b.last.CompareAndSwap(h, nil) {
		// Another element is being pushed after it.
		if next = (*Node[T])(atomic.LoadPointer(h.link())); next == nil {
			return nil, nil
		}
	}
	v = h.value
	b.head, *h = next, Node[T]{}
	return v, h
}

// link returns the address of the link to the next node in an Inbox.
func (n *Node[T]) link() *unsafe.Pointer { return (*unsafe.Pointer)(unsafe.Pointer(&n.next)) }

// Take moves all elements to the end of l in the order of their pushes. Only the owner calls it.
func (b *Inbox[T]) Take(l *List[T]) {
	for v, n := b.pop(); v != nil; v, n = b.pop() {
		l.Push(v, n)
	}
}
