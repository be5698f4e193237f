package rdma

import "github.com/nvmf-target/nvmf-target/fabric"

// requestState is where a command is on its way. A transition is a function in capsule.go, data.go
// or flush.go:
//
//	idle -> prepared -> [needMemory ->] [needRead -> reading ->] executing -> needSend -> sending -> idle
//
// The end of the queue (teardown.go) takes a request from any state to idle, through flushing if
// the device has it.
type requestState uint8

const (
	// requestIdle: the receive of the slot is posted, or has been flushed.
	requestIdle requestState = iota
	// requestPrepared: in the batch that goes to Handler.Prepare.
	requestPrepared
	// requestNeedMemory: on the list of a pool, for memory to move data through. Nothing is posted.
	requestNeedMemory
	// requestNeedRead: on queue.reads, for send queue slots and READ depth. Part of the data may
	// have been read already.
	requestNeedRead
	// requestReading: RDMA READs are in flight; the last of them is signalled.
	requestReading
	// requestExecuting: with the handler, or in the batch that goes to it.
	requestExecuting
	// requestNeedSend: completed, on queue.out, for send queue slots and the host's receives.
	requestNeedSend
	// requestWriting: a part of the data is being written, because not all fits into the send queue
	// at once.
	requestWriting
	// requestSending: the response is in flight, with the data (or its rest) before it. The receive
	// of the slot is posted.
	requestSending
	// requestFlushing: the queue is dead, and the device may touch the request's memory until the
	// queue pair is destroyed.
	requestFlushing
)

var requestStateNames = [...]string{
	"idle", "prepared", "need memory", "need read", "reading", "executing", "need send", "writing",
	"sending", "flushing",
}

func (s requestState) String() string { return requestStateNames[s] }

// request is a command and the slot its capsule arrives in.
type request struct {
	fabric.Request
	tag   uint16 // index in queue.reqs
	state requestState
	// waiting is the size of a capsule that arrived while the last response was in flight, 0 if
	// none did.
	waiting uint32
	// invalidate asks for SEND_WITH_INV of stale, one of the command's keys.
	invalidate bool
	stale      uint32
	// addr and rkey are the host's memory, from a keyed SGL descriptor; addr alone is the offset of
	// in-capsule data.
	addr uint64
	rkey uint32
	// blocks is the list of keyed SGL descriptors in the slot, if the host's memory is in several
	// pieces.
	blocks []byte
	at     cursor
	// slots is the number of send queue slots that what is in flight takes.
	slots int
	// pool is where Segs came from, nil if from the handler or the capsule.
	pool *pool
	// since is when the request began to wait for memory.
	since int64
	next  *request
	// slot is where a capsule from shared receives lies while holds is set.
	slot  uint16
	holds bool
}

// sendsData says that the data goes to the host before the response.
func (r *request) sendsData() bool {
	return r.Dir == fabric.ControllerToHost && r.Length > 0 && r.CQE.Status().OK()
}

// queueState is the life of a queue.
type queueState uint8

const (
	// queueOpening: the queue pair exists and receives are posted; the connection is not
	// established. Capsules are served.
	queueOpening queueState = iota
	// queueLive: established.
	queueLive
	// queueClosing: Disconnect was called; no capsule is taken, responses still leave.
	queueClosing
	// queueDying: the handler was told; the queue pair goes to the error state and its work is
	// flushed.
	queueDying
	// queueDestroying: the queue pair is being destroyed.
	queueDestroying
	// queueGone: the device has forgotten the queue; the handler still has requests.
	queueGone
	// queueFreed: nothing is left but the entry in the group.
	queueFreed
)

// list is a first-in first-out list of requests, linked through request.next.
type list struct{ head, tail *request }

func (l *list) push(r *request) {
	r.next = nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

// unpop puts r first.
func (l *list) unpop(r *request) {
	r.next = l.head
	if l.head = r; l.tail == nil {
		l.tail = r
	}
}

func (l *list) pop() *request {
	r := l.head
	if r != nil {
		if l.head = r.next; l.head == nil {
			l.tail = nil
		}
		r.next = nil
	}
	return r
}

// remove takes out every request of q.
func (l *list) remove(q *queue) {
	rest := *l
	*l = list{}
	for r := rest.pop(); r != nil; r = rest.pop() {
		if r.Queue != fabric.Queue(q) {
			l.push(r)
		}
	}
}

// A work request ID says what completed: kind in bits 63:56, generation of the queue in 55:32, its
// number in the group in 31:16, tag of the request in 15:0. Completions of a queue that is gone do
// not match any more.
type workKind uint8

const (
	workRecv  workKind = 1 + iota // a receive
	workQuiet                     // unsignalled: completes only if it fails
	workRead                      // the last RDMA READ of a part
	workWrite                     // the last RDMA WRITE of a part
	workSend                      // a response
	workData                      // a signalled RDMA WRITE that nobody waits for
	// a shared receive: the number is that of the shared receives, the tag a slot
	workShared
)

var workNames = [...]string{
	"", "receive", "data transfer", "RDMA READ", "RDMA WRITE", "response",
	"RDMA WRITE", "receive",
}

func (k workKind) String() string {
	if int(k) < len(workNames) {
		return workNames[k]
	}
	return "work"
}

const genMask = 1<<24 - 1

func workID(k workKind, gen uint32, number uint16, tag uint16) uint64 {
	return uint64(k)<<56 | uint64(gen&genMask)<<32 | uint64(number)<<16 | uint64(tag)
}
