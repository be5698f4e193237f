package list

import "sync/atomic"

// Inbox carries elements from other threads to their owner, usually a reactor: any goroutine
// pushes, the owner takes everything that has come. It takes no locks. The zero Inbox is empty.
// Push does not wake the owner: the caller does, afterwards.
type Inbox[T any] struct{ top atomic.Pointer[Node[T]] }

// Push adds v; n is its node, which is on no list. Any goroutine may call it.
func (b *Inbox[T]) Push(v *T, n *Node[T]) {
	n.value = v
	for {
		n.next = b.top.Load()
		if b.top.CompareAndSwap(n.next, n) {
			return
		}
	}
}

// Empty reports whether nothing has been pushed since the last Take. Any goroutine may call it.
func (b *Inbox[T]) Empty() bool { return b.top.Load() == nil }

// Take moves all elements to the end of l, in the order in which they were pushed. Only the owner
// calls it.
func (b *Inbox[T]) Take(l *List[T]) {
	if b.Empty() {
		return
	}
	var first *Node[T]
	for n := b.top.Swap(nil); n != nil; {
		n.next, first, n = first, n, n.next
	}
	for n := first; n != nil; {
		next := n.next
		n.next = nil
		l.Push(n.value, n)
		n = next
	}
}
