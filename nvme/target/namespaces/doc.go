// Package namespaces has the storage of namespaces: its view for hosts, its condition, and
// its exchange for other storage while hosts use it.
//
// A Namespace has two immutable snapshots, which reactors read on the I/O path: Attributes, which
// the configuration changes, and Geometry, which follows from the device and from the condition of
// the namespace. Changes by the configuration, pauses and changes of the write protection take
// turns. For another device, commands wait on every reactor until no channel uses the old one (see
// package dispatch).
//
// A Set has the namespaces of a subsystem, and the counters of the removed ones.
//
// The package knows no hosts and no controllers: it passes changes that concern them to the
// function tell of Namespace.Init. Any goroutine may call the methods unless they say otherwise.
// Reactors do not call methods that wait.
package namespaces
