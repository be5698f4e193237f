// Package observe counts how long commands took in each stage, by host, namespace and operation
// (Latencies), adds up the counts of the reactors (Reader), and is the flight recorder: the last
// commands of each queue (Ring), and copies of queues that failed (Dumps). It knows nothing of
// controllers.
//
// It imports the contract of transports, which defines the stages of a request. A reactor adds to
// the entries of its hosts and to the rings of its queues once per command. Others read them by
// messages to the reactor (Do).
package observe
