package wrap

import "github.com/nvmf-target/nvmf-target/backend"

// heap is operations by the time at which they are due, the earliest first. It grows to what was
// held at most.
type heap []held

type held struct {
	due int64
	io  *backend.IO
}

func (h *heap) push(io *backend.IO, due int64) {
	s := append(*h, held{due, io})
	i := len(s) - 1
	for up := (i - 1) / 2; i > 0 && s[i].due < s[up].due; i, up = up, (up-1)/2 {
		s[i], s[up] = s[up], s[i]
	}
	*h = s
}

// pop removes the earliest. The heap must not be empty.
func (h *heap) pop() *backend.IO {
	s := *h
	io, last := s[0].io, len(s)-1
	s[0], s[last] = s[last], held{}
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
