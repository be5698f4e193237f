package list

import "slices"

// Heap has elements with times, the earliest first. The zero Heap is empty. One goroutine owns it.
// An operation costs the logarithm of the number of elements.
type Heap[T any] struct {
	Steps Steps // counts moves
	all   []timed[T]
}

type timed[T any] struct {
	at int64
	member[T]
}

// ways is the number of elements below each: four make the heap half as high as two would.
const ways = 4

// Len returns the number of elements.
func (h *Heap[T]) Len() int { return len(h.all) }

// Reserve makes room for n elements, so that Set does not allocate.
func (h *Heap[T]) Reserve(n int) { h.all = slices.Grow(h.all, max(n-len(h.all), 0)) }

// First returns the earliest element and its time, nil if there is none.
func (h *Heap[T]) First() (v *T, at int64) {
	if len(h.all) == 0 {
		return nil, 0
	}
	return h.all[0].v, h.all[0].at
}

// At returns the time of the element at a place, which is in the Heap.
func (h *Heap[T]) At(p *Place) int64 { return h.all[*p-1].at }

// Has reports whether v is in the Heap. Its place p may have any value if it is not.
func (h *Heap[T]) Has(v *T, p *Place) bool {
	return *p-1 < Place(len(h.all)) && h.all[*p-1].v == v
}

// Set sets the time of v, and adds it if its place p is in no Heap.
func (h *Heap[T]) Set(v *T, p *Place, at int64) {
	if *p == 0 {
		h.all = append(h.all, timed[T]{})
		*p = Place(len(h.all))
	}
	h.move(int(*p-1), timed[T]{at, member[T]{v, p}})
}

// Remove removes the element at a place. It does nothing if the place is in no Heap.
func (h *Heap[T]) Remove(p *Place) {
	if *p == 0 {
		return
	}
	i, end := int(*p-1), len(h.all)-1
	*p = 0
	e := h.all[end]
	h.all[end] = timed[T]{}
	if h.all = h.all[:end]; i < end {
		h.move(i, e)
	}
}

// move puts an element into the free place i, or where it belongs above or below it.
func (h *Heap[T]) move(i int, e timed[T]) {
	for i > 0 && e.at < h.all[(i-1)/ways].at {
		h.put(i, h.all[(i-1)/ways])
		i = (i - 1) / ways
	}
	for {
		least, at := i, e.at
		for c := ways*i + 1; c <= ways*(i+1) && c < len(h.all); c++ {
			if h.all[c].at < at {
				least, at = c, h.all[c].at
			}
		}
		if least == i {
			h.put(i, e)
			return
		}
		h.put(i, h.all[least])
		i = least
	}
}

func (h *Heap[T]) put(i int, e timed[T]) {
	h.Steps.Add(1)
	h.all[i] = e
	*e.place = Place(i + 1)
}
