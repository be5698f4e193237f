package nvmedrive

import (
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/block"
)

// Probe reports errors of Open, as far as possible without commands, and the users.
func Probe(cfg block.Config) (r backend.Report) {
	n, err := Find(cfg.Path)
	if err != nil {
		r.Add(err)
		return r
	}
	r = block.Probe(block.Config{Path: n.Block, ReadOnly: cfg.ReadOnly})
	for _, list := range [][]backend.Problem{r.Errors, r.Warnings} {
		for i := range list {
			list[i].What = "has the block device " + n.Block + ", which " + list[i].What
		}
	}
	cfg.Engine.Probe(&r)
	mode := uint32(unix.R_OK)
	if !cfg.ReadOnly {
		mode |= unix.W_OK
	}
	if err := unix.Access(n.Char, mode); err != nil {
		r.Add(explain(n.Char, err))
	}
	return r
}
