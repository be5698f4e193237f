//go:build !invariants

package reactor

// stepTimes measures nothing without the build tag invariants.
type stepTimes struct{}

func (*stepTimes) begin()     {}
func (*stepTimes) end(any)    {}
func (*stepTimes) report(int) {}
