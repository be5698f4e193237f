//go:build invariants

package ram

import "github.com/nvmf-target/nvmf-target/internal/mem"

// poison overwrites frames that may not be used any more, so that a later use shows.
func (f *frames) poison(first, n int64) { mem.Poison(f.memory(first, n)) }
