// Package target is the controller side of NVMe over Fabrics: subsystems, namespaces, controllers,
// the discovery service, command dispatch and access control. It knows neither transports nor
// concrete backends.
//
// Flow and ownership. A Target is shared; it makes one Handler for each reactor. A transport opens
// a session for each of its queues and feeds it requests:
//
//	Prepare   session -> opcode table -> op.prepare: validates, answers direction and length, changes nothing
//	Execute   op.execute: answers at once, or fills the command's backend IO and appends it to a channel of this reactor
//	kick      submits what the batch appended, reaps what is already done, hands whole batches to Queue.Complete
//	Poll      reaps what the backend finished later
//
// The state of a command (cmd) is allocated with its session and hangs on its request
// (Request.Command); it belongs to the session's reactor. What several reactors read on the I/O
// path (namespace table, geometry, the controller's ready flag) is an immutable snapshot or an
// atomic that rarely changes. A controller lives on the reactor of its admin queue: its registers,
// features, events and logs are touched there only; the list of its queues has a mutex of its own,
// which only Connect and the end of a queue take. Everything else crosses reactors as a function
// given to Loop.Post.
//
// Locks are taken in the order Target, subsystem, controller, and never while calling a transport
// or a backend.
package target
