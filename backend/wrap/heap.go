package wrap

import "github.com/nvmf-target/nvmf-target/backend"

// heap is delayed operations by the time at which they are due, the earliest first. Scratch of each
// is its index. The array grows to the most there were, and is kept.
type heap []delayed

type delayed struct {
	due int64
	io  *backend.IO
}

func (h *heap) push(io *backend.IO, due int64) {
	*h = append(*h, delayed{})
	h.up(len(*h)-1, delayed{due, io})
}

// pop removes and returns the earliest. The heap is not empty.
func (h *heap) pop() *backend.IO {
	io := (*h)[0].io
	h.remove(io)
	return io
}

// remove removes an operation. It returns false if it is not there.
func (h *heap) remove(io *backend.IO) bool {
	s, i := *h, int(io.Scratch)
	if i < 0 || i >= len(s) || s[i].io != io {
		return false
	}
	end := len(s) - 1
	last := s[end]
	s[end] = delayed{}
	if *h = s[:end]; i == end {
		return true
	}
	if i > 0 && last.due < s[(i-1)/2].due {
		h.up(i, last)
	} else {
		h.down(i, last)
	}
	return true
}

// up puts d at i, which is free, or above.
func (h *heap) up(i int, d delayed) {
	for ; i > 0 && d.due < (*h)[(i-1)/2].due; i = (i - 1) / 2 {
		h.set(i, (*h)[(i-1)/2])
	}
	h.set(i, d)
}

// down puts d at i, which is free, or below.
func (h *heap) down(i int, d delayed) {
	for s := *h; ; {
		least := 2*i + 1
		if least+1 < len(s) && s[least+1].due < s[least].due {
			least++
		}
		if least >= len(s) || d.due <= s[least].due {
			break
		}
		h.set(i, s[least])
		i = least
	}
	h.set(i, d)
}

func (h *heap) set(i int, d delayed) {
	(*h)[i] = d
	d.io.Scratch = uint64(i)
}
