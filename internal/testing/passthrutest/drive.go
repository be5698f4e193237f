// Package passthrutest has an NVMe drive in memory, for tests of packages that send commands to
// drives. It sees a command as the kernel would: the bytes of the ioctl and the memory to which
// they point.
package passthrutest

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Drive is a passthru.Drive with one namespace. The fields may be changed while no command is in
// progress.
type Drive struct {
	Controller nvme.IdentifyController
	Namespace  nvme.IdentifyNamespace
	SMART      nvme.SMARTLog
	Features   map[uint8]uint32
	// Limit is the maximum number of bytes that the kernel passes on in one transfer, 0 for no
	// limit.
	Limit int
	// Fault is called before each command. Its results are the outcome of the command unless both
	// are zero.
	Fault func(request uintptr, sqe *nvme.SQE) (nvme.Status, syscall.Errno)

	mu     sync.Mutex
	blocks []byte
	counts map[nvme.Opcode]int
	sqe    nvme.SQE
	data   vectors
	list   []byte // the vectors of a command as stored in memory
}

// NSID is the identifier of the namespace.
const NSID = 3

// New makes a drive with a namespace of this many blocks of 1<<lbads bytes, which supports all
// commands.
func New(blocks uint64, lbads uint8) *Drive {
	d := &Drive{blocks: make([]byte, blocks<<lbads), counts: map[nvme.Opcode]int{}}
	d.Controller.VWC, d.Controller.ONCS = nvme.VWCPresent,
		nvme.ONCSDatasetManagement|nvme.ONCSWriteZeroes
	d.Namespace.NSZE, d.Namespace.NCAP, d.Namespace.NUSE = blocks, blocks, blocks
	d.Namespace.DLFEAT = nvme.DLFEATReadsZeroes | nvme.DLFEATWriteZeroes
	d.Namespace.LBAF[0].LBADS = lbads
	return d
}

// Count returns the number of commands with this opcode seen by the drive.
func (d *Drive) Count(op nvme.Opcode) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts[op]
}

// Ioctl implements passthru.Drive.
func (d *Drive) Ioctl(request uintptr, c *sys.NVMeCommand) (uint16, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sqe := &d.sqe
	sqe.SetOpcode(nvme.Opcode(c.Opcode))
	sqe.SetNSID(c.NSID)
	for i, v := range c.CDW10 {
		sqe.SetCDW(10+i, v)
	}
	data, e := d.memory(request, c)
	if e != 0 {
		return 0, e
	}
	if d.Fault != nil {
		if st, e := d.Fault(request, sqe); st != 0 || e != 0 {
			return uint16(st), e
		}
	}
	if request == sys.NVMeAdmin {
		return uint16(d.admin(sqe, c, data)), 0
	}
	d.counts[sqe.Opcode()]++
	if c.NSID != NSID || d.Limit > 0 && data.size() > d.Limit {
		return 0, unix.EINVAL // like the Linux driver
	}
	return uint16(d.io(sqe, data)), 0
}

func (d *Drive) admin(sqe *nvme.SQE, c *sys.NVMeCommand, data vectors) nvme.Status {
	switch sqe.Opcode() {
	case nvme.AdminIdentify:
		switch sqe.Identify().CNS() {
		case nvme.CNSController:
			data.write(nvme.Append(nil, &d.Controller))
		case nvme.CNSNamespace:
			data.write(nvme.Append(nil, &d.Namespace))
		default:
			return nvme.InvalidField | nvme.DNR
		}
	case nvme.AdminGetLogPage:
		if sqe.GetLog().LID() != nvme.LogSMART || sqe.NSID() != nvme.NSIDAll {
			return nvme.InvalidLogPage | nvme.DNR
		}
		data.write(nvme.Append(nil, &d.SMART)[:min(int(sqe.GetLog().Bytes()), nvme.SMARTLogSize)])
	case nvme.AdminGetFeatures:
		v, ok := d.Features[uint8(sqe.CDW(10))]
		if !ok {
			return nvme.InvalidField | nvme.DNR
		}
		c.Result = uint64(v)
	default:
		return nvme.InvalidOpcode | nvme.DNR
	}
	return 0
}

func (d *Drive) io(sqe *nvme.SQE, data vectors) nvme.Status {
	shift := d.Namespace.Format().LBADS
	off, n := sqe.SLBA()<<shift, uint64(sqe.NLB())<<shift
	switch sqe.Opcode() {
	case nvme.NVMFlush:
		return 0
	case nvme.NVMDatasetManagement:
		var r nvme.DSMRange
		if data.size() != len(r) || sqe.DSM().Ranges() != 1 || !sqe.DSM().Deallocate() {
			return nvme.InvalidField | nvme.DNR
		}
		data.read(r[:])
		off, n = r.SLBA()<<shift, uint64(r.Blocks())<<shift
	}
	if off > uint64(len(d.blocks)) || n > uint64(len(d.blocks))-off {
		return nvme.LBAOutOfRange | nvme.DNR
	}
	b := d.blocks[off : off+n]
	switch op := sqe.Opcode(); op {
	case nvme.NVMRead, nvme.NVMWrite:
		if data.size() != len(b) {
			return nvme.DataSGLLengthInvalid | nvme.DNR
		}
		if op == nvme.NVMRead {
			data.write(b)
		} else {
			data.read(b)
		}
	case nvme.NVMWriteZeroes, nvme.NVMDatasetManagement:
		clear(b)
	default:
		return nvme.InvalidOpcode | nvme.DNR
	}
	return 0
}

// vectors are pieces of memory of this process, given by address.
type vectors []unix.RemoteIovec

// memory finds the data of a command (struct nvme_passthru_cmd64 of linux/nvme_ioctl.h: addr, and
// data_len or vec_cnt).
func (d *Drive) memory(request uintptr, c *sys.NVMeCommand) (vectors, syscall.Errno) {
	raw := c.Uring()
	at := unix.RemoteIovec{
		Base: uintptr(binary.NativeEndian.Uint64(raw[24:])),
		Len:  int(binary.NativeEndian.Uint32(raw[36:])),
	}
	if request != sys.NVMeIOVec {
		d.data = append(d.data[:0], at)
		return d.data, 0
	}
	if at.Len > sys.MaxIovecs {
		return nil, unix.EINVAL
	}
	at.Len *= 16
	d.list = slices.Grow(d.list[:0], at.Len)[:at.Len]
	d.data = append(d.data[:0], at)
	d.data.read(d.list)
	d.data = d.data[:0]
	for e := d.list; len(e) > 0; e = e[16:] {
		d.data = append(d.data,
			unix.RemoteIovec{
				Base: uintptr(binary.NativeEndian.Uint64(e)),
				Len:  int(binary.NativeEndian.Uint64(e[8:])),
			})
	}
	return d.data, 0
}

func (v vectors) size() (n int) {
	for _, p := range v {
		n += p.Len
	}
	return n
}

// read fills b from the memory.
func (v vectors) read(b []byte) {
	var local [1]unix.Iovec
	sys.SetIovec(&local[0], b)
	n, err := unix.ProcessVMReadv(os.Getpid(), local[:], v, 0)
	done(b, n, err)
}

// write stores b in the memory.
func (v vectors) write(b []byte) {
	var local [1]unix.Iovec
	sys.SetIovec(&local[0], b)
	n, err := unix.ProcessVMWritev(os.Getpid(), local[:], v, 0)
	done(b, n, err)
}

func done(b []byte, n int, err error) {
	if n != len(b) || err != nil {
		panic("passthrutest: a command points to memory that is not there")
	}
}
