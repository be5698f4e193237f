// Package state keeps promises to hosts that no configuration has: port IDs, the generation of the
// discovery log, write protection, reservations and uncorrectable blocks. It also keeps the
// connections to storage clusters: the next process has to prevent their late writes. All of it
// is in a directory that one target at a time locks:
//
//	state                          port IDs, the generation, the managed directory, connections
//	protected/NAMESPACE.json       that hosts have write protected a namespace
//	reservations/NAMESPACE.json    the reservations of one that persist
//	uncorrectable/NAMESPACE.json   its blocks that are marked uncorrectable
//	shared/NAMESPACE.json          the pool with the promises of one in a group of gateways
//
// Content that cannot be read is never treated as missing. A fault of the directory or of the file
// "state" is an error of Open. A fault of the file of a namespace is an error of Check, and the
// namespace is not served. A change has succeeded when it is durable. After a crash a file has its
// content from before or after a change. See docs/adr/0044-persistent-promises.md.
package state
