// Package engine runs the queue pairs of a soft RDMA device and implements the objects around them:
// device, protection domain, memory region, completion queue, completion channel and shared receive
// queue. It knows nothing about protocols; a queue pair is an Endpoint, which embeds a Base.
//
// A device has one Engine per completion vector. An engine has one socket (wire.Conn) and the
// endpoints with a queue pair number of that socket. It has no thread: a goroutine that has work
// for an engine holds the engine, and other goroutines do not wait:
//
//	CQ.Poll   -> Step     receive, expire deadlines, run endpoints, flush the batch
//	PostSend  -> Kick     run one endpoint, flush the batch
//	Destroy.. -> Do       run a closure
//
// Step, Kick and Do first leave a note of the work (a flag, or an element of a lock-free list),
// then try to take the engine. If another goroutine holds the engine, that goroutine looks for
// notes after it has released the engine, takes the engine again, and does the work. Only Do waits
// for that.
//
// One turn of a held engine is bounded: one receive batch, a number of deadlines, a number of
// closures, a number of endpoints that each send a share of a batch. The rest waits for the next
// turn. If a completion channel or the background goroutine sleeps, FD of the wire.Conn becomes
// readable, to begin that turn.
package engine
