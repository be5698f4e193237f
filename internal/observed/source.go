package observed

import "context"

// Source has the facts of a running target, for any goroutine. Without a context it returns soon.
type Source struct {
	Status      func() Status
	Listeners   func() []Listener
	Subsystems  func() []Subsystem
	Namespaces  func() []Namespace
	Hosts       func() []Host
	Refusals    func() []Refusal
	Groups      func() []Group
	Connections func(context.Context) ([]Connection, error)
	Latency     func(context.Context) ([]Latency, error)
	// Reactors returns the reactors in the order of their index.
	Reactors func(context.Context) ([]Reactor, error)
	Disks    func(context.Context) ([]Disk, error)
	// Events returns the known events with an ID above since. changed is closed at the next event.
	Events func(since uint64) (list []Event, changed <-chan struct{})
	// PortCounters returns counters of RDMA drivers, nil if a device does not answer.
	PortCounters func() []PortCounter
}

// TraceQuery selects queues, and commands of them.
type TraceQuery struct {
	// Host and Subsystem are NQNs, "" means all; Queue is a queue ID, negative means all.
	Host, Subsystem string
	Queue           int
	// Follow asks for commands as they complete, Dumps for kept ones of failed or slow queues.
	Follow, Dumps bool
}

// Selects reports whether the query asks for a queue.
func (q *TraceQuery) Selects(host, subsystem string, qid uint16) bool {
	return (q.Host == "" || q.Host == host) && (q.Subsystem == "" || q.Subsystem == subsystem) &&
		(q.Queue < 0 || q.Queue == int(qid))
}
