//go:build !invariants

package disk

// most returns the most bytes that the next transfer of the op may move.
func (o *op) most() int { return maxTransfer }
