package reservation

import "github.com/nvmf-target/nvmf-target/nvme"

// logSize is how many notifications a controller keeps.
const logSize = 64

// Log has the notifications of log 80h of a controller. It belongs to the admin reactor.
type Log struct {
	count uint64
	queue []nvme.ReservationLog
}

// Add appends a notification. The last one counts lost ones (Base section 5.1.12.1.32).
func (l *Log) Add(typ nvme.ReservationNotification, nsid uint32) {
	if l.count++; l.count == 0 {
		l.count = 1
	}
	if len(l.queue) == logSize {
		l.queue[len(l.queue)-1].Count = l.count
		return
	}
	l.queue = append(l.queue, nvme.ReservationLog{Count: l.count, Type: typ, NSID: nsid})
}

// Page makes log 80h: the oldest notification, which is removed.
func (l *Log) Page() []byte {
	var page nvme.ReservationLog
	if len(l.queue) > 0 {
		page, l.queue = l.queue[0], l.queue[1:]
		page.Available = uint8(len(l.queue))
	}
	return nvme.Append(nil, &page)
}
