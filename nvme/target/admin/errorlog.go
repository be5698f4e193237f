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

// Add adds an entry of a failed command, without its count.
func (l *ErrorLog) Add(e nvme.ErrorLogEntry) {
	l.mu.Lock()
	l.count++
	e.Count = l.count
	l.ring[l.count%ErrorLogSize] = e
	l.mu.Unlock()
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
