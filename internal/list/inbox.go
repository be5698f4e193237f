package list

import "sync/atomic"

// Inbox is what other threads have for the owner of a reactor: any goroutine pushes, the owner
// takes all of it. The zero Inbox is empty. Whoever pushes wakes the owner afterwards; the Inbox
// does not.
type Inbox[T any] struct{ top atomic.Pointer[Node[T]] }

// Push adds v; n is its node, which is on no list. Any goroutine.
func (b *Inbox[T]) Push(v *T, n *Node[T]) {
	n.value = v
	for {
		n.next = b.top.Load()
		if b.top.CompareAndSwap(n.next, n) {
			return
		}
	}
}

// Empty says whether nothing was pushed since the last Take. Any goroutine.
func (b *Inbox[T]) Empty() bool { return b.top.Load() == nil }

// Take moves everything to the end of l, in the order in which it was pushed. Owner only.
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
