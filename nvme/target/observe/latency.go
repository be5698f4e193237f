package observe

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// LatencyEntries is the number of pairs of a host and a namespace that a reactor counts apart.
// Further hosts, and hosts that exceed their share of the entries, share one entry of the
// namespace. When the entry of a host that has left is needed, its counts are added to that one. So
// the sum of the entries of a namespace never decreases.
const LatencyEntries = 128

// Operation is a class of commands for a namespace.
type Operation uint8

// The operations.
const (
	OperationRead Operation = iota
	OperationWrite
	OperationOther
	operations
)

// String is "read", "write" or "other".
func (o Operation) String() string { return [...]string{"read", "write", "other"}[o] }

func operationOf(o nvme.Opcode) Operation {
	switch o {
	case nvme.NVMRead:
		return OperationRead
	case nvme.NVMWrite:
		return OperationWrite
	}
	return OperationOther
}

// Latency has the counts of commands after their responses have left.
type Latency struct {
	// IOs is the number of commands, Errors that of failed ones, Bytes the data of others.
	IOs, Errors, Bytes uint64
	// Total is the time from arrival until the response has left, Stages its parts.
	Total  histogram.Histogram
	Stages [fabric.Stages]histogram.Histogram
	// Slowest has the stages of the command that took longest, in nanoseconds.
	Slowest [fabric.Stages]int64
}

// Merge adds the counts of o.
func (l *Latency) Merge(o *Latency) {
	if o.Total.Max() > l.Total.Max() {
		l.Slowest = o.Slowest
	}
	l.IOs, l.Errors, l.Bytes = l.IOs+o.IOs, l.Errors+o.Errors, l.Bytes+o.Bytes
	l.Total.Merge(&o.Total)
	for i := range l.Stages {
		l.Stages[i].Merge(&o.Stages[i])
	}
}

// addZeros adds the durations of 0.
func (l *Latency) addZeros() {
	for i := range l.Stages {
		l.Stages[i].AddZeros(l.IOs - l.Stages[i].Count())
	}
}

// Namespace names a namespace. Its address stands for it.
type Namespace struct {
	SubNQN string
	NSID   uint32
}

// Entry has the counts of one reactor for a host and a namespace. host is "" for all hosts that
// have no entry of their own. Reactor only.
type Entry struct {
	host  string
	ns    *Namespace
	flows int                  // that use it
	share *int                 // the entries that it counts for while there are any
	ops   [operations]*Latency // nil: there were none
	left  list.Node[Entry]
	place list.Place // in Latencies.all
}

func (e *Entry) op(o Operation) *Latency {
	if e.ops[o] == nil {
		e.ops[o] = new(Latency)
	}
	return e.ops[o]
}

// Add counts a command and returns its duration. Stages gets no zeroes, see addZeros.
func (e *Entry) Add(r *fabric.Request) (total int64) {
	l := e.op(operationOf(r.SQE.Opcode()))
	for i, ns := range &r.Stages {
		if ns != 0 {
			l.Stages[i].Add(ns)
			total += ns
		}
	}
	if total > l.Total.Max() {
		l.Slowest = r.Stages
	}
	l.Total.Add(total)
	l.IOs++
	if r.CQE.Status().OK() {
		l.Bytes += uint64(r.Length)
	} else {
		l.Errors++
	}
	return total
}

// Latencies are the entries of a reactor. Reactor only, but for Reader.
type Latencies struct {
	loop    fabric.Loop
	entries map[*Namespace]map[string]*Entry // by host
	all     list.Set[Entry]
	hosts   int              // entries of hosts
	used    int              // entries of connected hosts
	left    list.List[Entry] // of hosts that are not connected, the oldest first
	reads   int              // entries are being copied and must not be merged
}

// NewLatencies makes the entries of the reactor of a loop.
func NewLatencies(loop fabric.Loop) Latencies {
	return Latencies{loop: loop, entries: map[*Namespace]map[string]*Entry{}}
}

// Join returns the entry of a host that begins to use a namespace. It counts for a share of all
// entries (ADR 0046): the number of entries of its payer, for this host and others.
func (l *Latencies) Join(host string, share *int, ns *Namespace) *Entry {
	e := l.entries[ns][host]
	switch {
	case e != nil && e.flows > 0: // the NQN is claimed elsewhere, too
		e.flows++
		return e
	case subnet.Exceeds(*share, 1, LatencyEntries-l.used-1):
		return l.others(ns)
	case e != nil:
		l.left.Remove(&e.left)
	case l.hosts >= LatencyEntries && (l.reads > 0 || l.left.Empty()):
		return l.others(ns)
	default:
		if l.hosts++; l.hosts > LatencyEntries {
			l.forget(l.left.Pop())
		}
		e = l.add(host, ns)
	}
	e.flows, e.share = 1, share
	*share++
	l.used++
	return e
}

// add adds an entry.
func (l *Latencies) add(host string, ns *Namespace) *Entry {
	if l.entries[ns] == nil {
		l.entries[ns] = map[string]*Entry{}
	}
	e := &Entry{host: host, ns: ns}
	l.entries[ns][host] = e
	l.all.Add(e, &e.place)
	return e
}

// others returns the entry that hosts of ns share.
func (l *Latencies) others(ns *Namespace) *Entry {
	if e := l.entries[ns][""]; e != nil {
		return e
	}
	return l.add("", ns)
}

// forget merges the entry of a host with that of others.
func (l *Latencies) forget(e *Entry) {
	delete(l.entries[e.ns], e.host)
	l.all.Remove(&e.place)
	l.hosts--
	for o, from := range e.ops {
		if from != nil {
			l.others(e.ns).op(Operation(o)).Merge(from)
		}
	}
	if len(l.entries[e.ns]) == 0 {
		delete(l.entries, e.ns)
	}
}

// Leave notes that a flow of a host uses a namespace no more.
func (l *Latencies) Leave(e *Entry) {
	if e.host == "" || l.entries[e.ns][e.host] != e {
		return
	}
	if e.flows--; e.flows == 0 {
		*e.share--
		l.used--
		l.left.Push(e, &e.left)
	}
}

// Drop removes the entries of a namespace: at most LatencyEntries of hosts, and that of others.
func (l *Latencies) Drop(ns *Namespace) {
	for _, e := range l.entries[ns] {
		if e.flows > 0 {
			e.flows = 1
			l.Leave(e)
		}
		if e.host != "" {
			l.hosts--
			l.left.Remove(&e.left)
		}
		l.all.Remove(&e.place)
	}
	delete(l.entries, ns)
}

// LatencyInfo is the Latency of a host, a namespace and an operation.
type LatencyInfo struct {
	// HostNQN is "" for hosts that are not counted apart, see LatencyEntries.
	HostNQN string
	Namespace
	Operation Operation
	*Latency
}

// Reader reads Latencies, for one caller at a time. It has room for one element.
type Reader chan struct{}

// Read lists the counts of reactors, in the order of subsystem, namespace, operation and host. It
// returns the error of ctx if that ends before all reactors have answered. No reactor calls it.
func (r Reader) Read(ctx context.Context, reactors []*Latencies) ([]LatencyInfo, error) {
	select {
	case r <- struct{}{}:
		defer func() { <-r }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var mu sync.Mutex                  // guards sums
	sums := map[LatencyInfo]*Latency{} // by the others
	add := func(i LatencyInfo) {
		mu.Lock()
		defer mu.Unlock()
		l := i.Latency
		if i.Latency = nil; sums[i] == nil {
			sums[i] = new(Latency)
		}
		sums[i].Merge(l)
	}
	errs := make(chan error, len(reactors))
	for _, l := range reactors {
		go func() { errs <- l.read(ctx, add) }()
	}
	for range reactors {
		if err := <-errs; err != nil {
			return nil, err // the others get it, too
		}
	}
	var list []LatencyInfo
	for i, l := range sums {
		l.addZeros()
		i.Latency = l
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b LatencyInfo) int {
		return cmp.Or(strings.Compare(a.SubNQN, b.SubNQN), cmp.Compare(a.NSID, b.NSID),
			cmp.Compare(a.Operation, b.Operation), strings.Compare(a.HostNQN, b.HostNQN))
	})
	return list, nil
}

// read calls add with the counts of the reactor. The Latency is valid during the call. The reactor
// copies one entry in a turn, and the next one after that was added: a turn takes some 10 µs. It is
// not called by the reactor.
func (l *Latencies) read(ctx context.Context, add func(LatencyInfo)) error {
	var entries []*Entry
	var copies [operations]Latency
	err := DoAll(ctx, l.loop, func(done func()) {
		l.reads++
		list.Pieces(l.loop.Post, list.StepsOf(l.loop), l.all.Walk(func(e *Entry) int {
			entries = append(entries, e)
			return 1
		}), done)
	})
	defer l.loop.Post(func() { l.reads-- })
	for i := 0; err == nil && i < len(entries); i++ {
		e := entries[i]
		if err = Do(ctx, l.loop, func() {
			for o, l := range e.ops {
				if copies[o].IOs = 0; l != nil {
					copies[o] = *l
				}
			}
		}); err != nil {
			break
		}
		for o := range copies {
			if copies[o].IOs > 0 {
				add(LatencyInfo{e.host, *e.ns, Operation(o), &copies[o]})
			}
		}
	}
	return err
}

// Do runs fn on a reactor and waits for it. After an error, that of ctx, fn may still run. No
// reactor calls it.
func Do(ctx context.Context, loop fabric.Loop, fn func()) error {
	return DoAll(ctx, loop, func(done func()) { fn(); done() })
}

// DoAll is Do for work in pieces: fn calls done at the end.
func DoAll(ctx context.Context, loop fabric.Loop, fn func(done func())) error {
	done := make(chan struct{})
	loop.Post(func() { fn(func() { close(done) }) })
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
