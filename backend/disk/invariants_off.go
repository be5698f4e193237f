//go:build !invariants

package disk

// transferLimit returns the most bytes that the next transfer of the op may move.
func (o *op) transferLimit() int { return maxTransfer }
