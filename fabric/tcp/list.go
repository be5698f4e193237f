package tcp

// requestList is a FIFO through request.next.
type requestList struct{ head, tail *request }

func (l *requestList) push(r *request) {
	r.next = nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

func (l *requestList) pop() *request {
	r := l.head
	if l.head = r.next; l.head == nil {
		l.tail = nil
	}
	r.next = nil
	return r
}

// remove takes r, which is on the list and usually its head, off it.
func (l *requestList) remove(r *request) {
	if l.head == r {
		l.pop()
		return
	}
	p := l.head
	for p.next != r {
		p = p.next
	}
	if p.next = r.next; p.next == nil {
		l.tail = p
	}
	r.next = nil
}

// take removes and returns all.
func (l *requestList) take() (head *request) {
	head = l.head
	l.head, l.tail = nil, nil
	return head
}
