package nvmedrive

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/passthru"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// identity is the data that a drive reports about itself and one namespace.
type identity struct {
	nsid uint32
	ctrl *nvme.IdentifyController
	ns   *nvme.IdentifyNamespace
}

func identify(d passthru.Drive, nsid uint32) (*identity, error) {
	id := &identity{nsid: nsid}
	b, err := passthru.Identify(d, nvme.CNSController, 0, 0)
	if err != nil {
		return nil, err
	}
	if id.ctrl, err = nvme.Parse[nvme.IdentifyController](b); err != nil &&
		!errors.Is(err, nvme.ErrReserved) {
		return nil, err
	}
	if b, err = passthru.Identify(d, nvme.CNSNamespace, nsid, 0); err != nil {
		return nil, err
	}
	if id.ns, err = nvme.Parse[nvme.IdentifyNamespace](b); err != nil &&
		!errors.Is(err, nvme.ErrReserved) {
		return nil, err
	}
	return id, id.check(deallocatedFails(d, nsid))
}

// deallocatedFails reports whether reads of deallocated blocks fail (Error Recovery, DULBE, NVM
// section 4.1.3.2), or false, the value after each reset, if that cannot be read.
func deallocatedFails(d passthru.Drive, nsid uint32) bool {
	v, err := passthru.Feature(d, nsid, errorRecovery)
	return err == nil && v&dulbe != 0
}

const (
	errorRecovery = 0x05    // FID
	dulbe         = 1 << 16 // DULBE
)

// check rejects formats with blocks that hold more than data.
func (id *identity) check(deallocatedFails bool) error {
	f := id.ns.Format()
	switch {
	case id.ns.NSZE == 0:
		return errors.New("is not active (nvme attach-ns)")
	case f.MS != 0:
		return fmt.Errorf("is formatted with %d bytes of metadata per block, which would be lost "+
			"(nvme format with an LBA format without metadata; \"nvme id-ns -H\" lists them)", f.MS)
	case id.ns.DPS&7 != 0:
		return errors.New(
			"is formatted with protection information, which would be lost (nvme format --pi=0)")
	case f.LBADS < 9 || f.LBADS > 16:
		return fmt.Errorf("has blocks of 2^%d bytes, which are not supported", f.LBADS)
	case deallocatedFails:
		return errors.New("fails reads of deallocated blocks (DULBE), which hosts do not expect " +
			"(nvme set-feature -f 5 -v 0)")
	}
	return nil
}

// describe corrects the kernel's description of the block device with that of the drive.
func (id *identity) describe(dc *disk.Config) error {
	block := 1 << id.ns.Format().LBADS
	if dc.Info.BlockSize != block || dc.Info.Size != int64(id.ns.NSZE)<<id.ns.Format().LBADS {
		return fmt.Errorf(
			"the kernel sees %d bytes in blocks of %d, the drive has %d blocks of %d; "+
				"rescan it (nvme ns-rescan)", dc.Info.Size, dc.Info.BlockSize, id.ns.NSZE, block)
	}
	dc.Info.VolatileCache = id.ctrl.VWC&nvme.VWCPresent != 0
	dc.Info.Discard = id.ctrl.ONCS&nvme.ONCSDatasetManagement != 0
	// Deallocating is a hint, even if deallocated blocks read as zeroes (NVM section 3.3.3.2).
	dc.Info.DiscardZeroes = false
	dc.Info.PhysicalBlockSize = max(block, min(dc.Info.PhysicalBlockSize, id.atomic()*block))
	return nil
}

// atomic returns the number of blocks, aligned to that number, that a power failure does not tear:
// AWUPF, or for this namespace NAWUPF within boundaries (NVM section 2.1.4). It is a power of two.
func (id *identity) atomic() int {
	n := int(id.ctrl.AWUPF) + 1
	if id.ns.NSFEAT&nvme.NSFEATAtomics != 0 {
		if id.ns.NAWUPF != 0 {
			n = int(id.ns.NAWUPF) + 1
		}
		if boundary := int(id.ns.NABSPF) + 1; boundary > 1 {
			if id.ns.NABO != 0 || boundary&(boundary-1) != 0 {
				return 1
			}
			n = min(n, boundary)
		}
	}
	return 1 << (bits.Len(uint(n)) - 1)
}

// deallocates reports whether Write Zeroes with DEAC leaves zeroes (NVM section 3.3.8, DLFEAT).
func (id *identity) deallocates() bool {
	return id.ns.DLFEAT&7 == nvme.DLFEATReadsZeroes && id.ns.DLFEAT&nvme.DLFEATWriteZeroes != 0
}

// mdts returns the maximum length of one transfer in bytes, 0 if there is no limit. MDTS counts
// pages; 4 KiB is the smallest page a drive may use.
func (id *identity) mdts() int64 {
	if id.ctrl.MDTS == 0 || id.ctrl.MDTS > 18 {
		return 0
	}
	return 4096 << id.ctrl.MDTS
}
