package nvmedrive

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/passthru"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/uring"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	maxBlocks  = 1 << 16 // of one command: NLB has 16 bits (NVM section 3.3)
	maxDiscard = 1 << 30 // bytes; a result counts them in 31 bits
)

// driver is the disk.Driver of a namespace: it turns Commands into NVMe commands. It is immutable.
type driver struct {
	drive  passthru.Drive
	nsid   uint32
	shift  uint8 // log2 of the block size
	deac   bool  // Write Zeroes may deallocate
	limits limits
}

var _ disk.Driver = (*driver)(nil)

// scratch is the memory of a command besides its data, until it completes.
type scratch struct {
	cmd    sys.NVMeCommand
	ranges [nvme.DSMRangeSize]byte
}

// newDriver makes the driver of a disk and completes the description of the disk.
func newDriver(d passthru.Drive, id *identity, l limits, dc *disk.Config) error {
	if err := id.describe(dc); err != nil {
		return err
	}
	block := int64(dc.Info.BlockSize)
	if n := id.mdts(); n > 0 {
		l.transfer = min(l.transfer, n)
	}
	if l.transfer < block {
		return fmt.Errorf("the kernel passes on at most %d bytes at once, less than a block",
			l.transfer)
	}
	if id.ctrl.ONCS&nvme.ONCSWriteZeroes == 0 {
		l.zeroes = 0
	}
	l.transfer = min(l.transfer, maxBlocks*block) &^ (block - 1)
	l.zeroes = min(l.zeroes, maxBlocks*block, maxDiscard) &^ (block - 1)
	l.discard = min(l.discard, maxDiscard) &^ (block - 1)
	dc.Info.Discard = dc.Info.Discard && l.discard > 0
	drv := &driver{
		drive: d, nsid: id.nsid, shift: id.ns.Format().LBADS, deac: id.deallocates(),
		limits: l,
	}
	// Data need not be aligned: the kernel copies data that the drive cannot access.
	dc.Driver, dc.Block, dc.Offset, dc.Memory = drv, true, int(block), 0
	return nil
}

func (d *driver) Limit(op backend.Op) int64 {
	switch op {
	case backend.OpWriteZeroes:
		return d.limits.zeroes
	case backend.OpDiscard:
		return d.limits.discard
	}
	return d.limits.transfer
}

func (d *driver) encode(c *disk.Command) *sys.NVMeCommand {
	s, _ := c.Scratch.(*scratch)
	if s == nil {
		s = new(scratch)
		c.Scratch = s
	}
	var sqe nvme.SQE
	sqe.SetNSID(d.nsid)
	slba, blocks := uint64(c.Off)>>d.shift, uint32(c.Len>>d.shift)
	var flags nvme.RWFlags
	if c.FUA {
		flags = nvme.RWFUA
	}
	data := c.Data
	switch c.Op {
	case backend.OpRead:
		sqe.SetOpcode(nvme.NVMRead)
		sqe.RW().Set(slba, blocks, 0)
	case backend.OpWrite:
		sqe.SetOpcode(nvme.NVMWrite)
		sqe.RW().Set(slba, blocks, flags)
	case backend.OpWriteZeroes:
		if c.Unmap && d.deac {
			flags |= nvme.RWDeallocate
		}
		sqe.SetOpcode(nvme.NVMWriteZeroes)
		sqe.RW().Set(slba, blocks, flags)
	case backend.OpDiscard:
		sqe.SetOpcode(nvme.NVMDatasetManagement)
		sqe.DSM().Set(1, true)
		data = s.ranges[:]
		(*nvme.DSMRange)(data).Set(slba, blocks)
	default:
		sqe.SetOpcode(nvme.NVMFlush)
	}
	s.cmd = passthru.Encode(&sqe)
	switch {
	case data != nil:
		s.cmd.SetData(data)
	case len(c.Vectors) > 0:
		s.cmd.SetVectors(c.Vectors)
	}
	return &s.cmd
}

func (d *driver) Start(r *uring.Ring, f uring.File, c *disk.Command, then uring.Completer) bool {
	cmd := d.encode(c)
	number := uint32(sys.NVMeUring)
	if len(c.Vectors) > 0 {
		number = uint32(sys.NVMeUringVec)
	}
	return r.StartCommand(f, number, cmd.Uring(), c.Data, then)
}

func (d *driver) Do(c *disk.Command) int32 {
	cmd := d.encode(c)
	request := sys.NVMeIO
	if len(c.Vectors) > 0 {
		request = sys.NVMeIOVec
	}
	st, e := d.drive.Ioctl(request, cmd)
	if e != 0 {
		return -int32(e)
	}
	return int32(st)
}

// try reads a block by io_uring to find out whether the kernel passes commands on at all.
func (d *driver) try(fd int) (err error) {
	m, err := mem.Map("NVMe trial", 1<<d.shift)
	if err != nil {
		return err
	}
	defer func() {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			err = errors.Join(err, m.Unmap())
		}
	}()
	c := &disk.Command{Op: backend.OpRead, Len: 1 << d.shift, Data: m.Bytes()[:1<<d.shift]}
	res, err := uring.Once(fd, func(r *uring.Ring, f uring.File, then uring.Completer) bool {
		return d.Start(r, f, c, then)
	})
	if err == nil && res < 0 {
		err = refused(syscall.Errno(-res))
	}
	return err
}

// Failure implements disk.Driver. The error names the status.
func (d *driver) Failure(status int32) error {
	st := nvme.Status(status)
	return fmt.Errorf("%w: %w", class(st.Code()), st)
}

// class returns the kind of error of a status (Base section 4.2.3, NVM section 3.1). Any other
// status counts as a failure of the medium or the drive.
func class(st nvme.Status) error {
	switch st {
	case nvme.InvalidOpcode, nvme.InvalidField:
		return backend.ErrUnsupported
	case nvme.LBAOutOfRange:
		return backend.ErrOutOfRange
	case nvme.CapacityExceeded:
		return backend.ErrNoSpace
	case nvme.NamespaceWriteProtected, writeToReadOnlyRange:
		return backend.ErrReadOnly
	case nvme.AbortedPowerLoss, nvme.AbortRequested, nvme.AbortedSQDeletion,
		nvme.CommandInterrupted, nvme.TransientTransportError:
		return backend.ErrAborted
	case nvme.InvalidNamespaceOrFormat, nvme.NamespaceNotReady:
		return backend.ErrOffline
	}
	if st.SCT() == sctPath {
		return backend.ErrOffline
	}
	return backend.ErrIO
}

const (
	writeToReadOnlyRange nvme.Status = 0x182 // NVM section 3.1.2
	sctPath              uint8       = 3     // Base section 4.2.3.4
)
