package sys

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// scsiRequest is struct sg_io_hdr of scsi/sg.h.
type scsiRequest struct {
	interfaceID, direction  int32
	cdbLen, senseMax        uint8
	_                       uint16
	dataLen                 uint32
	data, cdb, sense        uintptr
	timeoutMillis, _        uint32
	_                       int32
	_                       uintptr
	status, _, _, senseLen  uint8
	hostStatus, driverStats uint16
	residue                 int32
	_, _                    uint32
}

const (
	sgIO           = 0x2285 // SG_IO
	sgFromDevice   = -3     // SG_DXFER_FROM_DEV
	scsiTimeout    = 10_000 // milliseconds
	driverSense    = 8      // DRIVER_SENSE: there is sense data
	scsiSenseBytes = 32
)

// SCSIResult is the outcome of a SCSI command.
type SCSIResult struct {
	// Status is the status of the drive, Transport that of the adapter and driver; 0 means success.
	Status    uint8
	Transport uint32
	// N is the number of bytes read.
	N int
	// Sense is the sense data of the drive about an error.
	Sense []byte
}

// SCSIRead sends a command to the SCSI or ATA drive with the block device fd and reads the answer
// into data. It may block for up to ten seconds, and the scheduler knows.
func SCSIRead(fd int, cdb, data []byte) (SCSIResult, syscall.Errno) {
	sense := make([]byte, scsiSenseBytes)
	var pin runtime.Pinner
	defer pin.Unpin()
	at := func(b []byte) uintptr {
		pin.Pin(unsafe.SliceData(b))
		return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	}
	r := scsiRequest{
		interfaceID: 'S', direction: sgFromDevice, cdbLen: uint8(len(cdb)),
		senseMax: uint8(len(sense)), dataLen: uint32(len(data)),
		data: at(data), cdb: at(cdb), sense: at(sense), timeoutMillis: scsiTimeout,
	}
	if _, _, e := syscall.Syscall(unix.SYS_IOCTL, uintptr(fd), sgIO,
		uintptr(unsafe.Pointer(&r))); e != 0 {
		return SCSIResult{}, e
	}
	n := max(0, len(data)-int(r.residue))
	return SCSIResult{
		Status: r.status, Transport: uint32(r.hostStatus)<<16 | uint32(r.driverStats&^driverSense),
		N: min(n, len(data)), Sense: sense[:min(int(r.senseLen), len(sense))],
	}, 0
}
