// Package passthru sends NVMe commands to drives of this machine through the kernel's driver.
package passthru

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// timeoutMillis is the timeout of an admin command.
const timeoutMillis = 10_000

// Encode returns sqe in the form that the driver takes, without data.
func Encode(sqe *nvme.SQE) (c sys.NVMeCommand) {
	c.Opcode, c.NSID, c.CDW2, c.CDW3 = uint8(sqe.Opcode()), sqe.NSID(), sqe.CDW(2), sqe.CDW(3)
	for i := range c.CDW10 {
		c.CDW10[i] = sqe.CDW(10 + i)
	}
	return c
}

// Drive executes commands: the device of a drive or of one of its namespaces, or one of tests.
type Drive interface {
	// Ioctl sends c; see sys.NVMeIoctl.
	Ioctl(request uintptr, c *sys.NVMeCommand) (status uint16, e syscall.Errno)
}

// FD is an open device.
type FD int

func (fd FD) Ioctl(request uintptr, c *sys.NVMeCommand) (uint16, syscall.Errno) {
	return sys.NVMeIoctl(int(fd), request, c)
}

// admin sends an admin command that reads len(data) bytes and returns its result. An error is a
// syscall.Errno of the kernel or an nvme.Status of the drive. It may block for up to ten seconds.
func admin(d Drive, sqe *nvme.SQE, data []byte) (result uint64, err error) {
	c := Encode(sqe)
	c.TimeoutMillis = timeoutMillis
	var pin runtime.Pinner
	if len(data) > 0 {
		pin.Pin(&data[0])
		defer pin.Unpin()
	}
	c.SetData(data)
	switch st, e := d.Ioctl(sys.NVMeAdmin, &c); {
	case e != 0:
		return 0, e
	case st != 0:
		return 0, nvme.Status(st).Code()
	}
	return c.Result, nil
}

// Feature returns the current value of the feature fid of a namespace, or of the drive if nsid is
// 0. Errors wrap errors of the kernel or the drive.
func Feature(d Drive, nsid uint32, fid uint8) (uint32, error) {
	var sqe nvme.SQE
	sqe.SetOpcode(nvme.AdminGetFeatures)
	sqe.SetNSID(nsid)
	sqe.SetCDW(10, uint32(fid))
	v, err := admin(d, &sqe, nil)
	if err != nil {
		return 0, fmt.Errorf("feature %02Xh: %w", fid, err)
	}
	return uint32(v), nil
}

// Identify reads data structure cns of namespace nsid, or of the controller; errors as for Feature.
func Identify(d Drive, cns nvme.CNS, nsid uint32, csi nvme.CSI) ([]byte, error) {
	var sqe nvme.SQE
	sqe.SetOpcode(nvme.AdminIdentify)
	sqe.SetNSID(nsid)
	sqe.Identify().Set(cns, 0, csi)
	b := make([]byte, nvme.IdentifyDataSize)
	if _, err := admin(d, &sqe, b); err != nil {
		return nil, fmt.Errorf("identify %02Xh: %w", uint8(cns), err)
	}
	return b, nil
}

// SMART reads the health log of the whole drive. Errors are as for Feature.
func SMART(d Drive) (*nvme.SMARTLog, error) {
	var sqe nvme.SQE
	sqe.SetOpcode(nvme.AdminGetLogPage)
	sqe.SetNSID(nvme.NSIDAll)
	sqe.GetLog().Set(nvme.LogSMART, nvme.SMARTLogSize, 0, 0, false)
	b := make([]byte, nvme.SMARTLogSize)
	if _, err := admin(d, &sqe, b); err != nil {
		return nil, fmt.Errorf("health log: %w", err)
	}
	l, err := nvme.Parse[nvme.SMARTLog](b)
	if err != nil && !errors.Is(err, nvme.ErrReserved) {
		return nil, err
	}
	return l, nil
}
