package observed

// TraceQuery selects queues, and commands of them.
type TraceQuery struct {
	// Host and Subsystem are NQNs, "" means all; Queue is a queue ID, negative means all.
	Host, Subsystem string
	Queue           int
	// Follow asks for commands as they complete, and Dumps for the commands kept of queues that
	// failed or had commands that took too long.
	Follow, Dumps bool
}
