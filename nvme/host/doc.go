// Package host is an NVMe over Fabrics initiator, for "nvmf-target bench" and for tests. It speaks
// NVMe/TCP and NVMe/RDMA and follows the command sequence of the Linux host. It validates
// everything that the controller sends: a response that breaks the protocol ends the queue with a
// *Violation. Options.Tolerant is for other controllers.
//
// A controller cannot make the host use more memory than a queue has from its start; lists from the
// controller are bounded (commands.go). Each admin command has a deadline; the caller sets the
// deadlines of commands on I/O queues.
//
//	Connect ──> Controller ──OpenQueue──> Queue ──> link (TCP or RDMA)
//	            (admin queue on its own goroutine: keep alive)
//
// A Queue belongs to one goroutine at a time. Submit only builds the command; Poll sends all
// commands built so far in one call and processes everything that has arrived. Neither allocates,
// so a loop of Submit and Poll is a load generator. Read, Write, Flush, WriteZeroes and Discard are
// synchronous, for tests.
//
// Data buffers belong to the caller. Over RDMA they come from Controller.Map, which registers them
// once.
package host
