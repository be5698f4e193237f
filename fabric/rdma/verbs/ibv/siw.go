//go:build cgo

package ibv

import "github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"

// corkEntries is the size of a completion queue of soft iWARP that takes 1 MiB, at 32 bytes each.
const corkEntries = 32768

// cork keeps soft iWARP's library from failing for no reason it tells. It takes 0x90000, where a
// queue may be mapped from, for none at all (SIW_INVAL_UOBJ_KEY in rdma/siw-abi.h; rdma-core,
// providers/siw/siw.c). The kernel gives each queue the first place that is free, so the first one
// that needs 0x90000 cannot be made, nor can any after it, until one before it is freed. This makes
// a completion queue that begins before that place and reaches beyond it, and stays as long as the
// context: it must be the first thing that is made.
func (d *device) cork() error {
	if d.attr.VendorID != verbs.VendorSIW {
		return nil
	}
	_, err := d.CreateCQ(corkEntries, nil, 0)
	return err
}
