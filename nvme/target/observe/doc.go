// Package observe counts how long commands took in each stage, by host, namespace and operation
// (Latencies), and adds up the counts of the reactors (Reader). It knows nothing of controllers.
//
// It imports the contract of transports, which defines the stages of a request. A reactor adds to
// the entries of its hosts once per command. Others read them by messages to the reactor (Do).
package observe
