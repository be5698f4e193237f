// Package namespaces has the storage behind namespaces: what hosts see of it, its condition, and
// its exchange for other storage while hosts use it.
//
// A Namespace has two immutable snapshots, which reactors read on the I/O path: Attributes, which
// the configuration changes, and Geometry, which follows from the device and from the condition of
// the namespace. Changes by the configuration, pauses and changes of the write protection take
// turns. For another device, commands wait on every reactor until no channel uses the old one (see
// package dispatch).
//
// The package knows no hosts and no controllers. What concerns them it passes to Namespace.Tell.
// Any goroutine may call the methods that do not say otherwise; those that wait are not for
// reactors.
package namespaces
