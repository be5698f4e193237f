// Package host is an NVMe over Fabrics initiator for tests, benchmarks and tools. It speaks
// NVMe/TCP and NVMe/RDMA and follows the command sequence of the Linux host. It judges what the
// controller sends: a response that breaks the protocol ends the queue with a *Violation.
//
//	Connect ──> Controller (admin queue, its own goroutine: keep alive, events) ──OpenQueue──> Queue ──> link (TCP or RDMA)
//
// A Queue belongs to one goroutine at a time. Submit only builds the command; Poll sends everything
// built, in one call, and takes what has arrived. Neither allocates, so a loop of Submit and Poll
// is a load generator. Read, Write, Flush, WriteZeroes and Discard are the synchronous form for
// tests.
//
// Data buffers are the caller's. Over RDMA they come from Controller.Map, which registers them
// once.
package host
