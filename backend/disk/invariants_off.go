//go:build !invariants

package disk

// most is how many bytes the next transfer of the op moves at most.
func (o *op) most() int { return maxTransfer }
