// Package reservation implements the reservations of namespaces (Base section 8.1.22, ADR 0027):
// the state machine (State), its changes and their store (Namespace), the commands that hosts may
// send (Access), and the Reservation Notification log (Log). It knows neither commands in flight
// nor devices: package target has every reactor exclude hosts that have lost access (User).
//
// It imports the wire formats and nothing of the target. Reactors read an Access for each command
// of a reserved namespace. Everything that changes a State is done by one goroutine for each
// namespace, which may block in the Store.
package reservation
