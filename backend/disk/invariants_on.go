//go:build invariants

package disk

// transferLimit returns the maximum length of the next transfer of the op in bytes. An op makes two
// transfers, so that other operations come between them unless the range lock prevents it.
func (o *op) transferLimit() int {
	const page = 4096
	if n := o.io.Len / 2 &^ (page - 1); o.done == 0 && n > 0 {
		return min(int(n), o.maxTransfer())
	}
	return o.maxTransfer()
}
