package wrap

import "github.com/nvmf-target/nvmf-target/backend"

// delayed is a heap of operations ordered by due time, which is their Scratch.
type delayed []*backend.IO

func (d delayed) Len() int           { return len(d) }
func (d delayed) Less(i, j int) bool { return d[i].Scratch < d[j].Scratch }
func (d delayed) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

func (d *delayed) Push(io any) { *d = append(*d, io.(*backend.IO)) }

func (d *delayed) Pop() any {
	last := len(*d) - 1
	io := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return io
}
