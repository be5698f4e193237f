// Package engine runs the queue pairs of a soft RDMA device and implements the objects around them:
// device, protection domain, memory region, completion queue, completion channel and shared receive
// queue. It knows nothing about protocols; a queue pair is an Endpoint, which embeds a Base.
//
// A device has one Engine per completion vector. An engine has one socket (wire.Conn) and the
// endpoints with a queue pair number of that socket. It has no thread: the goroutine that has work
// for it holds it, and no other one waits for it:
//
//	CQ.Poll   -> Step     receive, expire deadlines, run endpoints, flush the batch
//	PostSend  -> Kick     run one endpoint, flush the batch
//	Destroy.. -> Do       run a closure
//
// Step, Kick and Do first leave a note of the work (a flag, or an element of a lock-free list),
// then try to take the engine. If another goroutine holds it, that one looks for notes after it has
// let go, takes the engine again, and does the work. Only Do waits for that.
//
// One turn of a held engine is bounded: one receive batch, a number of deadlines, a number of
// closures, a number of endpoints that each send a share of a batch. The rest waits for the next
// turn, and FD of the wire.Conn becomes readable for it if a completion channel or the background
// goroutine sleeps.
package engine
