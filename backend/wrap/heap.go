package wrap

import "github.com/nvmf-target/nvmf-target/backend"

// heap is delayed operations by the time at which they are due, the earliest first. Its array grows
// to the most there were, and is kept.
type heap []delayed

type delayed struct {
	due int64
	io  *backend.IO
}

func (h *heap) push(io *backend.IO, due int64) {
	s := append(*h, delayed{due, io})
	i := len(s) - 1
	for up := (i - 1) / 2; i > 0 && s[i].due < s[up].due; i, up = up, (up-1)/2 {
		s[i], s[up] = s[up], s[i]
	}
	*h = s
}

// pop removes and returns the earliest. The heap is not empty.
func (h *heap) pop() *backend.IO {
	s := *h
	io, last := s[0].io, len(s)-1
	s[0], s[last] = s[last], delayed{}
	s = s[:last]
	for i := 0; ; {
		least := i
		for _, down := range [2]int{2*i + 1, 2*i + 2} {
			if down < last && s[down].due < s[least].due {
				least = down
			}
		}
		if least == i {
			break
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
	*h = s
	return io
}
