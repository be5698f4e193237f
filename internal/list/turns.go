package list

// Turns has elements of owners that take turns: between two elements of one owner comes one of each
// other owner that has any. The zero Turns is empty.
type Turns[K comparable, T any] struct {
	owners map[K]*turn[K, T]
	next   List[turn[K, T]]
}

// turn has the elements of one owner, in order.
type turn[K comparable, T any] struct {
	owner K
	list  List[T]
	node  Node[turn[K, T]]
}

// Push makes v the last element of an owner.
func (t *Turns[K, T]) Push(owner K, v *T, n *Node[T]) {
	o := t.owners[owner]
	if o == nil {
		if t.owners == nil {
			t.owners = map[K]*turn[K, T]{}
		}
		o = &turn[K, T]{owner: owner}
		t.owners[owner] = o
		t.next.Push(o, &o.node)
	}
	o.list.Push(v, n)
}

// Pop removes the next element and returns it, nil if there is none.
func (t *Turns[K, T]) Pop() *T {
	o := t.next.Pop()
	if o == nil {
		return nil
	}
	v := o.list.Pop()
	if o.list.Empty() {
		delete(t.owners, o.owner)
	} else {
		t.next.Push(o, &o.node)
	}
	return v
}

// Remove removes an element of an owner.
func (t *Turns[K, T]) Remove(owner K, n *Node[T]) {
	o := t.owners[owner]
	if o.list.Remove(n); o.list.Empty() {
		t.next.Remove(&o.node)
		delete(t.owners, owner)
	}
}

// Empty reports whether there are no elements.
func (t *Turns[K, T]) Empty() bool { return len(t.owners) == 0 }
