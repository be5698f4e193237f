package admin

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// ErrorLogSize is the number of entries of an error log: ELPE+1.
const ErrorLogSize = 64

// ErrorLog is the Error Information log of a controller. Any reactor may use it. Only commands that
// fail take its mutex.
type ErrorLog struct {
	mu    sync.Mutex
	count uint64
	ring  [ErrorLogSize]nvme.ErrorLogEntry
}

// Failure has the data of an entry besides the command and its status.
type Failure struct {
	SQID      uint16
	Transport nvme.TransportType
	LBA       uint64 // the first block that it failed with, 0 if unknown
	// BadFlags: byte 1 is wrong. NoNamespace: it is an I/O command for no active namespace.
	BadFlags, NoNamespace bool
}

// Add adds a failed command.
func (l *ErrorLog) Add(sqe *nvme.SQE, st nvme.Status, f Failure) {
	e := nvme.ErrorLogEntry{
		SQID: f.SQID, CID: sqe.CID(), Status: uint16(st|nvme.More) << 1, TRTYPE: f.Transport,
		Location: f.location(sqe, st), Opcode: sqe.Opcode(), Version: 1, LBA: f.LBA,
	}
	if sqe.Opcode() != nvme.FabricsOpcode {
		e.NSID = sqe.NSID()
	}
	l.mu.Lock()
	l.count++
	e.Count = l.count
	l.ring[l.count%ErrorLogSize] = e
	l.mu.Unlock()
}

// location is the byte of the command that the status is about, as far as the status alone tells.
func (f *Failure) location(sqe *nvme.SQE, st nvme.Status) uint16 {
	switch st.Code() {
	case nvme.InvalidOpcode:
		if sqe.Opcode() == nvme.FabricsOpcode {
			return nvme.LocationFabricsType
		}
		return nvme.LocationOpcode
	case nvme.InvalidField:
		if f.BadFlags {
			return nvme.LocationFlags
		}
		if f.NoNamespace {
			return nvme.LocationNSID
		}
	case nvme.InvalidNamespaceOrFormat, nvme.NamespaceWriteProtected:
		return nvme.LocationNSID
	case nvme.DataSGLLengthInvalid:
		return nvme.LocationSGLLength
	case nvme.SGLTypeInvalid:
		return nvme.LocationSGLType
	case nvme.LBAOutOfRange, nvme.InvalidLogPage, nvme.FeatureNotChangeable:
		return nvme.LocationCDW10
	case nvme.FeatureNotSaveable:
		return nvme.LocationSave
	}
	return nvme.LocationNone
}

// Total returns the number of entries ever made.
func (l *ErrorLog) Total() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// Page makes log 01h, newest entry first (Base section 5.1.12.1.2).
func (l *ErrorLog) Page() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := make([]byte, 0, ErrorLogSize*nvme.ErrorLogEntrySize)
	for i := range uint64(ErrorLogSize) {
		e := &nvme.ErrorLogEntry{}
		if i < l.count {
			e = &l.ring[(l.count-i)%ErrorLogSize]
		}
		b = nvme.Append(b, e)
	}
	return b
}
