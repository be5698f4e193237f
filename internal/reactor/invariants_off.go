//go:build !invariants

package reactor

import "github.com/nvmf-target/nvmf-target/internal/list"

// stepTimes measures nothing without the build tag invariants.
type stepTimes struct{ count list.Steps }

func (*stepTimes) begin()     {}
func (*stepTimes) end(any)    {}
func (*stepTimes) report(int) {}
