// Package list has the two queues that the I/O path is made of: a first-in first-out list of
// elements that carry their own links, so that adding one allocates nothing, and an inbox for what
// other threads have finished.
package list

import "iter"

// Node links an element into a List. The element has it as a field; it is on one list at a time.
type Node[T any] struct {
	next, prev *Node[T]
	value      *T // nil while it is on no list
}

// Listed says whether the element is on a list.
func (n *Node[T]) Listed() bool { return n.value != nil }

// List is a first-in first-out list. The zero List is empty. It takes no locks: one goroutine owns
// it.
type List[T any] struct{ head, tail *Node[T] }

// Empty says whether the list has no element.
func (l *List[T]) Empty() bool { return l.head == nil }

// First is the oldest element, nil if the list is empty.
func (l *List[T]) First() *T {
	if l.head == nil {
		return nil
	}
	return l.head.value
}

// Push adds v as the newest element; n is its node.
func (l *List[T]) Push(v *T, n *Node[T]) {
	n.value, n.prev = v, l.tail
	if l.tail == nil {
		l.head = n
	} else {
		l.tail.next = n
	}
	l.tail = n
}

// PushFirst adds v as the oldest element.
func (l *List[T]) PushFirst(v *T, n *Node[T]) {
	n.value, n.next = v, l.head
	if l.head == nil {
		l.tail = n
	} else {
		l.head.prev = n
	}
	l.head = n
}

// Pop takes the oldest element off the list, nil if it is empty.
func (l *List[T]) Pop() *T {
	n := l.head
	if n == nil {
		return nil
	}
	v := n.value
	l.Remove(n)
	return v
}

// Remove takes the element of n, which is on the list, off it.
func (l *List[T]) Remove(n *Node[T]) {
	if n.prev == nil {
		l.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	*n = Node[T]{}
}

// All yields the elements, oldest first. The current one may be removed meanwhile.
func (l *List[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for n := l.head; n != nil; {
			next := n.next
			if !yield(n.value) {
				return
			}
			n = next
		}
	}
}
