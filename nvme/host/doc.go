// Package host is an NVMe over Fabrics initiator: that of "nvmf-target bench", and of tests. It
// speaks NVMe/TCP and NVMe/RDMA and follows the command sequence of the Linux host. It validates
// everything that the controller sends: a response that breaks the protocol ends the queue with a
// *Violation. Options.Tolerant is for controllers of others.
//
// What a controller sends takes no more memory than a queue has from its start; lists that it sends
// are bounded (commands.go). Each admin command has a deadline; those of I/O queues are the
// caller's.
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
