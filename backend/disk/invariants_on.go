//go:build invariants

package disk

// most is how many bytes the next transfer of the op moves at most. It takes two, so that other
// operations come between them unless the range lock keeps these out.
func (o *op) most() int {
	const page = 4096
	if n := o.io.Len / 2 &^ (page - 1); o.done == 0 && n > 0 {
		return int(n)
	}
	return maxTransfer
}
