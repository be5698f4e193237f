package tcp

// queueState is the life of a connection.
//
//	connecting --ICReq--> live --fault, Disconnect--> closing --all sent--> lingering --end of stream, deadline--> dead
//
// A broken socket goes to dead from anywhere.
type queueState uint8

const (
	// queueConnecting waits for an ICReq. The handler does not know the queue.
	queueConnecting queueState = iota
	// queueLive takes capsules.
	queueLive
	// queueClosing takes nothing more and sends what is queued (responses, then a C2HTermReq if
	// there was a fault). Input is thrown away.
	queueClosing
	// queueLingering has sent everything, has told the peer so (shutdown), and throws input away
	// until the peer closes or a deadline: closing with unread input would send a reset and could
	// destroy what the peer has not read yet. The handler has been told that the queue is dead.
	queueLingering
	// queueDead has no socket. The queue stays in its group until the handler has given back every
	// request.
	queueDead
)

// requestState is the way of one command. In each state exactly one party may touch the request.
//
//	free -> parsed -+-> executing -> sending -> free
//	                +-> waiting -> (executing | granted)
//	                +-> granting -> granted -> executing
type requestState uint8

const (
	// requestFree is on the queue's free list.
	requestFree requestState = iota
	// requestParsed has its SQE and perhaps in-capsule data still arriving. It is on the group's
	// batch for Prepare, or prepared and waiting for the rest of its data.
	requestParsed
	// requestWaiting is prepared and on the group's list of those that wait for data memory.
	requestWaiting
	// requestGranting is prepared, has memory, and its R2T is queued for sending.
	requestGranting
	// requestGranted has its R2T sent: H2CData is arriving.
	requestGranted
	// requestExecuting belongs to the handler.
	requestExecuting
	// requestSending is completed; its response is queued for sending.
	requestSending
)

// receiveState tells what the next input byte of a queue is.
type receiveState uint8

const (
	// receiveHeader: a PDU header (with digest and padding).
	receiveHeader receiveState = iota
	// receiveData: data of the PDU, for the current request.
	receiveData
	// receiveDigest: the data digest of the PDU.
	receiveDigest
)
