package target

import (
	"errors"
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// errorLogSize is ELPE+1.
const errorLogSize = 64

// errorLog is the Error Information log of a controller. Only commands that fail take its mutex.
type errorLog struct {
	mu    sync.Mutex
	count uint64
	ring  [errorLogSize]nvme.ErrorLogEntry
}

// add records a failed command and the first block that it failed with. Any reactor.
func (l *errorLog) add(s *session, sqe *nvme.SQE, st nvme.Status, lba uint64) {
	e := nvme.ErrorLogEntry{
		SQID: s.qid, CID: sqe.CID(), Status: uint16(st|nvme.More) << 1, TRTYPE: s.info.Transport,
		Location: s.location(sqe, st), Opcode: sqe.Opcode(), Version: 1, LBA: lba,
	}
	if sqe.Opcode() != nvme.FabricsOpcode {
		e.NSID = sqe.NSID()
	}
	l.mu.Lock()
	l.count++
	e.Count = l.count
	l.ring[l.count%errorLogSize] = e
	l.mu.Unlock()
}

// failedLBA is the first block that a command failed with, as far as is known: the one that err
// names, or the command's first; 0 if the command has no SLBA.
func (c *cmd) failedLBA(err error) uint64 {
	if c.s.table[c.req.SQE.Opcode()].flags&opBlocks == 0 {
		return 0
	}
	if err != nil && c.ch != nil { // refused commands allocate nothing
		var at *backend.Fault
		if errors.As(err, &at) {
			return uint64(at.Off) >> c.ch.ns.geo.Load().shift
		}
	}
	return c.req.SQE.SLBA()
}

// location is the byte of the command that the status is about, as far as the status alone tells.
func (s *session) location(sqe *nvme.SQE, st nvme.Status) uint16 {
	fabrics := sqe.Opcode() == nvme.FabricsOpcode
	switch st.Code() {
	case nvme.InvalidOpcode:
		if fabrics {
			return nvme.LocationFabricsType
		}
		return nvme.LocationOpcode
	case nvme.InvalidField:
		if fabrics && badFabricsFlags(sqe) || !fabrics && sqe.Flags()&flagsMask != psdtSGL<<6 {
			return nvme.LocationFlags
		}
		if !fabrics && s.qid != 0 && s.ctrl.namespace(sqe.NSID()) == nil {
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

// total is the number of entries ever made.
func (l *errorLog) total() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// page is log 01h, newest entry first (Base section 5.1.12.1.2).
func (l *errorLog) page() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := make([]byte, 0, errorLogSize*nvme.ErrorLogEntrySize)
	for i := range uint64(errorLogSize) {
		e := &nvme.ErrorLogEntry{}
		if i < l.count {
			e = &l.ring[(l.count-i)%errorLogSize]
		}
		b = nvme.Append(b, e)
	}
	return b
}
