//go:build !invariants

package disk

// transferLimit returns the maximum length of the next transfer of the op in bytes.
func (o *op) transferLimit() int { return o.maxTransfer() }
