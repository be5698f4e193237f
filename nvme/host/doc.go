// Package host is an NVMe over Fabrics initiator for tests, benchmarks and tools. It speaks
// NVMe/TCP and NVMe/RDMA and follows the command sequence of the Linux host. It validates
// everything that the controller sends: a response that breaks the protocol ends the queue with a
// *Violation.
//
//	Connect ──> Controller ──OpenQueue──> Queue ──> link (TCP or RDMA)
//	            (admin queue on a goroutine of its own: keep alive, events)
//
// A Queue belongs to one goroutine at a time. Submit only builds the command; Poll sends all
// commands built so far in one call and processes everything that has arrived. Neither allocates,
// so a loop of Submit and Poll is a load generator. Read, Write, Flush, WriteZeroes and Discard are
// synchronous, for tests.
//
// Data buffers belong to the caller. Over RDMA they come from Controller.Map, which registers them
// once.
package host
