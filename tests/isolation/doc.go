// Package isolation tests the promise that no host, stranger or device can starve another: an
// ordinary host beside the worst neighbour keeps its service.
//
// TestMatrix has a row for each resource that a peer or a device can hold or waste. A culprit does
// so while a victim, another host, reads, writes and sends keep-alives. TestAllCulprits runs them
// together. The packages tcp and strangers below run the rows of culprits on TCP in processes of
// their own, since leaks are counted for a process. bound.go has the promise and its measurement.
//
// refused_rows.go has the commands that must be refused, sent to each kind of listener, and
// random_rows.go random ones.
//
// Floods of connections are made of a list of kinds, from half a TLS handshake to a discovery
// controller, and a list of places where strangers come from. Each pair is a row. Beside a flood, a
// known host connects with eight queues and uses them when more strangers have come, and a host
// from an unknown address connects.
package isolation
