// Package dispatch gives the IOs of commands to the devices of namespaces, takes them back, and
// keeps them away from a device while something else has to come first (ADR 0048).
//
// A Namespace has one Channel on each reactor that uses it, and Channels has all channels of a
// reactor. An IO is on one list: pending, that of the hold that keeps it away, or that of the
// device. So it is withdrawn without a search, and the IOs in flight are known.
//
// A barrier of a namespace keeps IOs from its device, on all reactors, and waits for the IOs that
// the device has already. It has four uses:
//
//	             IOs kept away              IOs waited for
//	quiesce      all wait in pending        all, and zero-copy reads and writes
//	range lock   writes to its blocks held  the same writes
//	fence        of hosts without access    theirs, and all that were given up
//	             refused
//	late writes  writes of the host to the  the late writes
//	             same blocks held
//
// These are its parts:
//
//	barrier  tells every reactor that has a channel; channels opened later begin with it
//	hold     has the IOs that are kept from the device of one channel
//	search   finds IOs that the device has
//	await    counts IOs until the device has given them back
//	drained  is called by each reactor; done is called after the last one
//
// A fence, and a queue that ends, visits commands in pieces: see Walk.
//
// The package knows commands by their IOs and queues only, and namespaces by the interface Storage.
// A Channel belongs to its reactor, a Namespace to all of them.
package dispatch
