// Package observe counts latencies by stage, host, namespace and operation (Latencies), sums them
// up over reactors (Reader), and has the flight recorder: the last commands of each queue (Ring)
// and copies of failed queues (Dumps). It knows nothing of controllers.
//
// It imports the contract of transports, which has the stages. A reactor writes once per command to
// its hosts' entries and queues' rings. Others ask it to read them (Do).
package observe
