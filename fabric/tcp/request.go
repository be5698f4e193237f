package tcp

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// request is one command with the transport's state.
type request struct {
	fabric.Request
	node   list.Node[request] // on sendq, grants, dropped or resumed
	memory mem.Allocation     // memory of the pool, or the wait for it
	// data is in-capsule data in the receive buffer until Execute returns, or for sendRaw.
	data     []byte
	asked    int64  // when its R2T left, or the last data for it arrived
	dataBy   int64  // deadline for more of that data
	wire     int    // bytes to send
	placed   uint32 // data bytes of a write received, or of a read copied by copyData
	crc      uint32 // data digest of the response, of the bytes digested so far
	digested uint32
	tag      uint16 // index in queue.reqs
	ttag     uint16
	round    uint16 // counts uses, to recognize stale transfer tags
	unsent   uint16 // ticks that found it on sendq, or waiting for data
	state    requestState
	send     sendKind // the PDUs to send, while it is on sendq
	damaged  bool     // a data digest was wrong
}

// requestState is the life of a command. In each state exactly one party may touch the request.
//
//	free -> parsed -+-> executing -> sending -> free
//	                +-> waiting --+-> receiving -> executing
//	                +-------------+-> granting -> receiving
type requestState uint8

const (
	// requestFree is on the queue's free list.
	requestFree requestState = iota
	// requestParsed is on the group's batch for Prepare.
	requestParsed
	// requestWaiting is prepared and waits for data memory, or is Deferred.
	requestWaiting
	// requestGranting is prepared, has memory, and its R2T is queued for sending.
	requestGranting
	// requestReceiving is prepared, has memory, and receives data from its capsule or H2CData.
	requestReceiving
	// requestExecuting belongs to the handler, or soon will.
	requestExecuting
	// requestSending is completed; its response is queued for sending.
	requestSending
	// requestDropped is completed, and its queue has ended.
	requestDropped
)

func (r *request) queue() *queue { return r.Queue.(*queue) }
