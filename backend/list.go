package backend

// List is a first-in first-out list of IOs, linked through their Next. Devices keep what they have
// in it; the zero List is empty. An IO is on one list at a time.
type List struct {
	head, tail *IO
}

// Push appends io.
func (l *List) Push(io *IO) {
	io.Next = nil
	if l.tail == nil {
		l.head = io
	} else {
		l.tail.Next = io
	}
	l.tail = io
}

// Pop takes the oldest IO off the list, nil if it is empty.
func (l *List) Pop() *IO {
	io := l.head
	if io == nil {
		return nil
	}
	if l.head = io.Next; l.head == nil {
		l.tail = nil
	}
	io.Next = nil
	return io
}

// Fill moves the oldest IOs into done and returns how many; it is what most Channel.Poll end with.
func (l *List) Fill(done []*IO) int {
	n := 0
	for n < len(done) && l.head != nil {
		done[n] = l.Pop()
		n++
	}
	return n
}

// First is the oldest IO, nil if the list is empty.
func (l *List) First() *IO { return l.head }
