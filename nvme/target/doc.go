// Package target implements the controller side of NVMe over Fabrics: subsystems, namespaces,
// controllers, the discovery service, command dispatch and access control. It depends on the
// contracts of packages fabric and backend, not on any transport or storage.
//
// All reactors share a Target, which makes one Handler for each of them. A transport opens a
// session for each of its queues and passes requests to the handler of the queue's reactor. A
// command passes through these files, once each and in this order:
//
//	prepare.go   Prepare finds the command's state and its row in an opcode table (ops.go)
//	io.go        the row's prepare function validates the command and sets direction and length
//	waiting.go   a command that has to wait at a limit is deferred, and prepared again later
//	zerocopy.go  memory of the namespace is attached to the request, if the namespace is memory
//	             (the transport moves the host's data in)
//	execute.go   Execute completes the command at once or queues its backend.IO on a channel
//	dispatch     (a package) the channel submits a batch to the device; Poll takes back completed
//	             IOs
//	status.go    the outcome becomes an NVMe status
//	complete.go  the completion entry is filled and passed to Queue.Complete, in batches
//
// The state of a command (cmd) is allocated with its session and is attached to its request
// (Request.Command); it belongs to the session's reactor. State that several reactors read on the
// I/O path (namespace table, geometry, the controller's ready flag) is an immutable snapshot or an
// atomic that rarely changes. A controller belongs to the reactor of its admin queue: its
// properties, features, events and logs are accessed only there. The list of its queues has a mutex
// of its own, which only Connect and the end of a queue take. Everything else crosses reactors as a
// function passed to Loop.Post.
//
// While hosts are connected, a subsystem and a namespace change by getting another immutable value
// (update.go and package namespaces). For another device, commands wait on every reactor until no
// channel uses the old one (package dispatch).
//
// A controller embeds the Controller of package controllers, which has its log pages, features and
// Identify data structures.
//
// Locks are taken in the order Target, subsystem, controller, and never while calling a transport
// or a backend.
package target
