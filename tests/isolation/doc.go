// Package isolation tests the promise that no host, stranger or device can starve another: an
// ordinary host beside the worst neighbour keeps its service.
//
// TestMatrix has a row for each resource that a peer or a device can hold or waste. A culprit does
// so while a victim, another host, reads, writes and sends keep-alives. TestAllCulprits runs them
// together. bound_test.go has the promise and its measurement.
package isolation
