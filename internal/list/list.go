// Package list has the queues of the I/O path: a first-in first-out list of elements with their own
// links, so that adding one allocates nothing, and an inbox through which other threads hand
// elements to its owner. It also orders elements by time, cuts the work of a reactor into pieces,
// and counts its steps.
package list

import (
	"fmt"
	"iter"
)

// Node links an element into a List or an Inbox, one at a time. It is a field of the element.
type Node[T any] struct {
	next, prev *Node[T]
	value      *T // nil if on no list
}

// Listed reports whether the element is on a list or in an inbox.
func (n *Node[T]) Listed() bool { return n.value != nil }

// mustBe panics unless the element is listed, or not, as it must be. It checks that with the tag
// invariants only: a wrong element would cut off others, which then wait for ever.
func (n *Node[T]) mustBe(listed bool) {
	if invariants && n.Listed() != listed {
		panic(fmt.Sprintf("list: an element of %T must be listed: %v", n, listed))
	}
}

// List is a first-in first-out list. The zero List is empty. It takes no locks: one goroutine owns
// it. A List may be moved by assignment, if its old place is set to the zero List.
type List[T any] struct{ head, tail *Node[T] }

// Empty reports whether the list has no element.
func (l *List[T]) Empty() bool { return l.head == nil }

// First returns the oldest element, nil if the list is empty.
func (l *List[T]) First() *T {
	if l.head == nil {
		return nil
	}
	return l.head.value
}

// Last returns the newest element, nil if the list is empty.
func (l *List[T]) Last() *T {
	if l.tail == nil {
		return nil
	}
	return l.tail.value
}

// Next returns the element after the one of n, which is on the list; nil if there is none.
func (l *List[T]) Next(n *Node[T]) *T {
	if n.next == nil {
		return nil
	}
	return n.next.value
}

// Push adds v as the newest element; n is its node, which is on no list.
func (l *List[T]) Push(v *T, n *Node[T]) {
	n.mustBe(false)
	n.value, n.prev = v, l.tail
	if l.tail == nil {
		l.head = n
	} else {
		l.tail.next = n
	}
	l.tail = n
}

// PushFirst adds v as the oldest element; n is its node, which is on no list.
func (l *List[T]) PushFirst(v *T, n *Node[T]) {
	n.mustBe(false)
	n.value, n.next = v, l.head
	if l.head == nil {
		l.tail = n
	} else {
		l.head.prev = n
	}
	l.head = n
}

// Pop removes and returns the oldest element, nil if the list is empty.
func (l *List[T]) Pop() *T {
	n := l.head
	if n == nil {
		return nil
	}
	v := n.value
	if l.head = n.next; l.head == nil {
		l.tail = nil
	} else {
		l.head.prev = nil
	}
	*n = Node[T]{}
	return v
}

// Fill moves the oldest elements into dst until one of both ends, and returns their number.
func (l *List[T]) Fill(dst []*T) (n int) {
	for ; n < len(dst) && l.head != nil; n++ {
		dst[n] = l.Pop()
	}
	return n
}

// Remove removes the element of n, which is on the list.
func (l *List[T]) Remove(n *Node[T]) {
	n.mustBe(true)
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

// All yields the elements, oldest first. The loop may remove the current one.
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
