// Package compound carries out commands that take several device IOs: Copy, Verify, Compare, Write
// Zeroes, Dataset Management, Flush of every namespace, and fused pairs of Compare and Write.
//
// Hosts decide how long most of these commands are. Therefore, they are cut into pieces. A reactor
// begins one piece in each poll, so that other commands never wait for more (ADR 0045):
//
//	Pool.turns   owners of commands, which take turns by bytes
//	Owner.flows  the flows of one of these, to its namespaces, which take turns by pieces
//	Flow.work    the compounds of a flow, which take turns by pieces
//
// Devices have a bounded part of the work of a flow at a time. For other hosts it makes no
// difference how many commands and queues a host has.
//
// The package knows commands and channels of devices by the interfaces Command and Channel.
// Everything belongs to one reactor.
package compound
