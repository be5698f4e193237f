// Package admin makes the data structures that admin commands return: health, endurance, error and
// telemetry logs, the identity of namespaces, and the values of features that are more than a
// number. It also has the properties of a controller, its keep alive timer and its events. A reply
// may have to wait for a query, such as one of a drive.
//
// It imports wire formats, the contract of devices and the log of hosts. Functions work on data
// that package target passes. A type belongs to the reactor of its controller, unless its comment
// says otherwise.
package admin
