package rdma

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// requestState is the place of a command on its path:
//
//	idle -> prepared -> [needMemory ->] [needRead -> reading ->] executing ->
//		needSend [-> writing -> needSend] -> sending -> idle
//
// A transition is a function in command.go, buffers.go, queue.go or send.go. The end of the queue
// (close.go) takes a request from any state to idle, through flushing if the device has it.
type requestState uint8

const (
	// requestIdle: no command.
	requestIdle requestState = iota
	// requestPrepared: in the next batch for Handler.Prepare.
	requestPrepared
	// requestNeedMemory: waits for data buffers of a pool, or is Deferred. Nothing is posted.
	requestNeedMemory
	// requestNeedRead: waits on queue.toRead for slots and READ depth, maybe with a part read.
	requestNeedRead
	// requestReading: RDMA READs are in flight; the last of them is signaled.
	requestReading
	// requestExecuting: with the handler, or in the next batch for it.
	requestExecuting
	// requestNeedSend: completed; waits on queue.toSend for slots and receives of the host.
	requestNeedSend
	// requestWriting: a part of the data is being written, as the send queue has no room for all.
	requestWriting
	// requestSending: the response is in flight, with the data (or its rest) before it. The receive
	// slot of the command is posted.
	requestSending
	// requestFlushing: the queue has ended, and the device may touch the request's memory until the
	// queue pair is destroyed.
	requestFlushing
)

var requestStateNames = [...]string{
	"idle", "prepared", "need memory", "need read", "reading", "executing", "need send", "writing",
	"sending", "flushing",
}

func (s requestState) String() string { return requestStateNames[s] }

// request is a command from its capsule to the completion of its response.
type request struct {
	fabric.Request
	tag   uint16 // index in queue.reqs
	state requestState
	// slot is the receive slot of the capsule while hasSlot is set.
	slot    uint16
	hasSlot bool
	// invalidate makes the response a SEND_WITH_INV of staleKey, one of the command's keys.
	invalidate bool
	staleKey   uint32
	// addr and rkey are the host's memory, from a keyed SGL descriptor; addr alone is the offset of
	// in-capsule data. If blocks is not empty, the host's memory is given instead by blocks, the
	// list of keyed SGL descriptors in the receive slot.
	addr   uint64
	rkey   uint32
	blocks []byte
	// Progress of the transfer. Work requests have been made for the first moved bytes; data is the
	// cursor in Segs after them. blocks begins with the descriptor of the next byte, of which the
	// first blockUsed bytes are done.
	data      mem.Cursor
	moved     uint32
	blockUsed uint32
	// wrs is the number of send queue slots in use by work requests in flight.
	wrs   int
	since int64 // when it began to wait for the host, see waitsForHost
	// memory is of a pool, or the wait for it. Segs may also be of the namespace or capsule.
	memory mem.Allocation
	node   list.Node[request]
}

// sendsData reports whether data goes to the host before the response.
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
	// queueDraining: the handler's session is closed; the queue pair goes to the error state and
	// its work requests complete.
	queueDraining
	// queueDestroying: the queue pair is being destroyed.
	queueDestroying
	// queueDestroyed: the queue pair was destroyed; the handler may still have requests.
	queueDestroyed
	// queueFreed: only the entry in the group is left.
	queueFreed
)
