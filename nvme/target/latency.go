package target

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// LatencyEntries is for how many pairs of a host and a namespace a reactor counts apart. Further
// hosts, and those that exceed their share of the entries, have one of the namespace together, in
// which also goes what was counted for a host that has left, when its entry is needed. So the sum
// of the entries of a namespace never gets less.
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

// Latency is what was counted of commands whose responses have left.
type Latency struct {
	// IOs is the number of commands, Errors that of those which failed, and Bytes the data of the
	// others.
	IOs, Errors, Bytes uint64
	// Total is the time from the arrival of a command until its response has left, Stages its
	// parts.
	Total  histogram.Histogram
	Stages [fabric.Stages]histogram.Histogram
	// Slowest has the stages of the command that took longest, in nanoseconds.
	Slowest [fabric.Stages]int64
}

// add counts a command and returns how long it took. Durations of 0 are not added to Stages, see
// addZeros.
func (l *Latency) add(r *fabric.Request) (total int64) {
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

// Merge adds what o has counted.
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

// latencyEntry is what one reactor has counted of a host and a namespace; host is "" for all that
// have no entry of their own. Reactor only.
type latencyEntry struct {
	host  string
	ns    *namespace
	flows int                  // that use it
	share *owner               // that it counts for while there are any
	ops   [operations]*Latency // nil: there were none
	left  list.Node[latencyEntry]
	place list.Place // in latencies.all
}

func (e *latencyEntry) op(o Operation) *Latency {
	if e.ops[o] == nil {
		e.ops[o] = new(Latency)
	}
	return e.ops[o]
}

// latencies are the entries of a reactor. Reactor only.
type latencies struct {
	entries map[*namespace]map[string]*latencyEntry // by host
	all     list.Set[latencyEntry]
	hosts   int                     // those of hosts
	used    int                     // those of hosts that are connected
	left    list.List[latencyEntry] // of hosts that are not connected, the oldest first
	reads   int                     // entries are being copied and must not be merged
}

// join returns the entry of a host that begins to use a namespace. The payer of the host has a
// share of all entries (ADR 0046).
func (l *latencies) join(t *hostShare, ns *namespace) *latencyEntry {
	e, o := l.entries[ns][t.nqn], t.payer
	switch {
	case e != nil && e.flows > 0: // the NQN is claimed elsewhere, too
		e.flows++
		return e
	case subnet.Exceeds(o.entries, 1, LatencyEntries-l.used-1):
		return l.others(ns)
	case e != nil:
		l.left.Remove(&e.left)
	case l.hosts >= LatencyEntries && (l.reads > 0 || l.left.Empty()):
		return l.others(ns)
	default:
		if l.hosts++; l.hosts > LatencyEntries {
			l.forget(l.left.Pop())
		}
		e = l.add(t.nqn, ns)
	}
	e.flows, e.share = 1, o
	o.entries++
	l.used++
	return e
}

// add adds an entry.
func (l *latencies) add(host string, ns *namespace) *latencyEntry {
	if l.entries[ns] == nil {
		l.entries[ns] = map[string]*latencyEntry{}
	}
	e := &latencyEntry{host: host, ns: ns}
	l.entries[ns][host] = e
	l.all.Add(e, &e.place)
	return e
}

// others returns the entry that hosts of ns share.
func (l *latencies) others(ns *namespace) *latencyEntry {
	if e := l.entries[ns][""]; e != nil {
		return e
	}
	return l.add("", ns)
}

// forget merges the entry of a host with that of others.
func (l *latencies) forget(e *latencyEntry) {
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

// leave notes that a flow of a host uses a namespace no more.
func (l *latencies) leave(e *latencyEntry) {
	if e.host == "" || l.entries[e.ns][e.host] != e {
		return
	}
	if e.flows--; e.flows == 0 {
		e.share.entries--
		l.used--
		l.left.Push(e, &e.left)
	}
}

// drop removes the entries of a namespace: at most LatencyEntries of hosts, and that of others.
func (l *latencies) drop(ns *namespace) {
	for _, e := range l.entries[ns] {
		if e.flows > 0 {
			e.flows = 1
			l.leave(e)
		}
		if e.host != "" {
			l.hosts--
			l.left.Remove(&e.left)
		}
		l.all.Remove(&e.place)
	}
	delete(l.entries, ns)
}

// Sent implements fabric.Handler.
func (h *Handler) Sent(r *fabric.Request) {
	c := r.Command.(*cmd)
	c.recordSent(r)
	if c.latency == nil {
		return
	}
	total := c.latency.op(operationOf(r.SQE.Opcode())).add(r)
	if total >= watchdogAfter {
		c.s.watchdog(total)
	}
	if slow := h.t.slowIO.Load(); slow != 0 && total >= slow {
		c.logSlow(r, total)
	}
}

// SetSlowIO says from which time on a command is logged with its stages; 0 is never. It is limited
// as other lines that hosts cause.
func (t *Target) SetSlowIO(d time.Duration) { t.slowIO.Store(int64(d)) }

func (c *cmd) logSlow(r *fabric.Request, total int64) {
	spent := func(s fabric.Stage) time.Duration { return time.Duration(r.Stages[s]) }
	c.s.ctrl.peerLog().Info("slow command", "command", ioOps[r.SQE.Opcode()].name, "duration",
		time.Duration(total), "wait", spent(fabric.StageWait), "host_data",
		spent(fabric.StageHostData), "backend", spent(fabric.StageBackend), "response",
		spent(fabric.StageResponse), "subsystem", c.s.ctrl.sub.nqn, "nsid", r.SQE.NSID(), "host",
		c.s.ctrl.hostNQN, "qid", c.s.qid, "size", r.Length, "status", r.CQE.Status().String())
}

// LatencyInfo is the Latency of a host, a namespace and an operation.
type LatencyInfo struct {
	// HostNQN is "" for hosts that are not counted apart, see LatencyEntries.
	HostNQN, SubNQN string
	NSID            uint32
	Operation       Operation
	*Latency
}

// Latencies lists what was counted, in the order of subsystem, namespace, operation and host. An
// error is that of ctx, which ended before all reactors answered. One caller is served at a time.
func (t *Target) Latencies(ctx context.Context) ([]LatencyInfo, error) {
	select {
	case t.readingLatencies <- struct{}{}:
		defer func() { <-t.readingLatencies }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	t.mu.Lock()
	handlers := slices.Clone(t.handlers)
	t.mu.Unlock()
	var mu sync.Mutex // guards what follows
	var list []LatencyInfo
	sums := map[latencySum]*Latency{}
	add := func(key latencySum, l *Latency) {
		mu.Lock()
		defer mu.Unlock()
		if sums[key] == nil {
			sums[key] = new(Latency)
			list = append(list, LatencyInfo{key.host, key.sub, key.nsid, key.op, sums[key]})
		}
		sums[key].Merge(l)
	}
	errs := make(chan error, len(handlers))
	for _, h := range handlers {
		go func() { errs <- h.readLatencies(ctx, add) }()
	}
	for range handlers {
		if err := <-errs; err != nil {
			return nil, err // the others get it, too
		}
	}
	for _, l := range sums {
		l.addZeros()
	}
	slices.SortFunc(list, func(a, b LatencyInfo) int {
		return cmp.Or(strings.Compare(a.SubNQN, b.SubNQN), cmp.Compare(a.NSID, b.NSID),
			cmp.Compare(a.Operation, b.Operation), strings.Compare(a.HostNQN, b.HostNQN))
	})
	return list, nil
}

// latencySum is what entries of all reactors are added up by.
type latencySum struct {
	host, sub string
	nsid      uint32
	op        Operation
}

// readLatencies calls add with what the reactor has counted. The Latency is valid during the call.
// The reactor copies an entry in a turn, and the next one when that was added: a turn takes some
// 10 µs. It is not called by the reactor.
func (h *Handler) readLatencies(ctx context.Context, add func(latencySum, *Latency)) error {
	var entries []*latencyEntry
	var copies [operations]Latency
	var used [operations]bool
	err := h.doAll(ctx, func(done func()) {
		h.latency.reads++
		h.inPieces(h.latency.all.Walk(func(e *latencyEntry) int {
			entries = append(entries, e)
			return 1
		}), done)
	})
	defer h.loop.Post(func() { h.latency.reads-- })
	for i := 0; err == nil && i < len(entries); i++ {
		e := entries[i]
		if err = h.do(ctx, func() {
			for o, l := range e.ops {
				if used[o] = l != nil; l != nil {
					copies[o] = *l
				}
			}
		}); err != nil {
			break
		}
		for o := range e.ops {
			if used[o] {
				add(latencySum{e.host, e.ns.sub.nqn, e.ns.nsid, Operation(o)}, &copies[o])
			}
		}
	}
	return err
}
