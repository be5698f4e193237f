//go:build cgo

package ibv

import "github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"

// fillerEntries is the size of a completion queue of soft iWARP that takes 1 MiB, at 32 bytes each.
const fillerEntries = 32768

// occupyInvalidKey works around a bug in soft iWARP's library. It takes 0x90000, a valid offset to
// map a queue from, for an invalid one (SIW_INVAL_UOBJ_KEY in rdma/siw-abi.h; rdma-core,
// providers/siw/siw.c). The kernel gives each queue the first free offset. So the first queue that
// gets 0x90000 cannot be made, nor any queue after it, until an earlier one is freed. This function
// makes a completion queue that begins before that offset and reaches beyond it, and stays as long
// as the context. It must be the first object that is made.
func (d *device) occupyInvalidKey() error {
	if d.attr.VendorID != verbs.VendorSIW {
		return nil
	}
	_, err := d.CreateCQ(fillerEntries, nil, 0)
	return err
}
