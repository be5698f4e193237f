// Package observe counts how long commands took in each stage, by host, namespace and operation
// (Latencies), and adds up what the reactors have counted (Reader). It knows nothing of
// controllers.
//
// It imports the contract of transports, whose requests have the stages. A reactor adds to the
// entries of its hosts once per command. Others read them by messages to the reactor (Do).
package observe
