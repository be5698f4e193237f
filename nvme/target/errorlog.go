package target

import (
	"sync"

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

// add notes a failed command. Any reactor.
func (l *errorLog) add(s *session, sqe *nvme.SQE, st nvme.Status) {
	e := nvme.ErrorLogEntry{
		SQID: s.qid, CID: sqe.CID(), Status: uint16(st) << 1, TRTYPE: s.info.Transport,
		Location: 0xFFFF, // not specific to a parameter
		Opcode:   sqe.Opcode(), Version: 1,
	}
	if sqe.Opcode() != nvme.FabricsOpcode {
		e.NSID = sqe.NSID()
		if s.qid != 0 {
			e.LBA = sqe.SLBA()
		}
	}
	l.mu.Lock()
	l.count++
	e.Count = l.count
	l.ring[l.count%errorLogSize] = e
	l.mu.Unlock()
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
		b = e.Append(b)
	}
	return b
}
