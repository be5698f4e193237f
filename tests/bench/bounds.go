package main

import (
	"fmt"
	"strings"
)

// This is the table of all claims about performance, native and in the lab. Both reports take their
// checks and the column of bounds from it. docs/benchmarks/README.md has the origin of the bounds.

// bound is one claim: a value computed from records, and the bound of its median.
type bound struct {
	group   string // of the records
	claim   string
	limit   float64 // the maximum, or the minimum if atLeast is set
	atLeast bool
	peer    string // the value of other targets
	// row is the workload to which ratio, the bound of target over reference, applies; "" if the
	// claim is not about one row.
	row   string
	ratio float64
	// value returns the value of each round, none if it was not measured.
	value func(m measured) []float64
	// detail describes the origin of the value, nil if the table shows it.
	detail func(m measured) string
}

// measured are the records of one group.
type measured struct {
	records []record
	group   string
}

// of returns the values of one figure, round by round.
func (m measured) of(workload, who, figure string) []float64 {
	return series(m.records, m.group, workload, who, figure)
}

// median returns the median of one figure, 0 if it was not measured.
func (m measured) median(workload, who, figure string) float64 {
	if v := m.of(workload, who, figure); len(v) > 0 {
		return spreadOf(v).Median
	}
	return 0
}

// share is the IOPS of the target relative to the reference.
func share(group, row, of string, least float64, peer string) bound {
	return bound{
		group: group, claim: row + ": IOPS over " + of, limit: least, atLeast: true, peer: peer,
		row: row, ratio: least,
		value: func(m measured) []float64 {
			return over(m.of(row, whoTarget, "iops"), m.of(row, whoReference, "iops"))
		},
	}
}

// compared is one figure of the target relative to the reference.
func compared(group, row, figure, what string, most float64, peer string) bound {
	return bound{
		group: group, claim: row + ": " + what, limit: most, peer: peer,
		value: func(m measured) []float64 {
			return over(m.of(row, whoTarget, figure), m.of(row, whoReference, figure))
		},
	}
}

// beside is the IOPS of the target in one row relative to another row.
func beside(claim, row, base string, least float64, peer string) bound {
	return bound{
		group: nativeGroup, claim: claim, limit: least, atLeast: true, peer: peer,
		value: func(m measured) []float64 {
			return over(m.of(row, whoTarget, "iops"), m.of(base, whoTarget, "iops"))
		},
	}
}

// plain is a figure of the target itself.
func plain(claim, row, figure string, most float64) bound {
	return bound{
		group: nativeGroup, claim: claim, limit: most,
		value: func(m measured) []float64 { return m.of(row, whoTarget, figure) },
	}
}

// nothing is the bound of bytes per I/O if the I/O path does not allocate: the occasional
// allocations of the process amount to less than a byte per I/O.
const nothing = 0.5

// nativeBounds are the claims of "make bench".
func nativeBounds() []bound {
	const single, read32, write32 = "4K random read QD 1", "4K random read QD 32",
		"4K random write QD 32"
	// At depth 1 the mean latency is the inverse of the IOPS, so the floor needs no histogram.
	adaptive := compared(nativeGroup, single, "mean_us", "mean latency over the floor's, adaptive",
		1.25, "SPDK 1.27, interrupts")
	polling := compared(nativeGroup, pollingName, "mean_us", "mean latency over the floor's", 1.10,
		"SPDK 1.16")
	for row, b := range map[string]*bound{single: &adaptive, pollingName: &polling} {
		b.row, b.ratio = row, 1/b.limit
		b.detail = func(m measured) string {
			return fmt.Sprintf("the floor's was %s µs", rounds(m.of(row, whoReference, "mean_us")))
		}
	}
	// The floor receives into one buffer, which stays in the cache, the target into the namespace.
	// The detail compares it with a floor that receives into a large area.
	write := share(nativeGroup, writeName, "the floor", 0.95, "")
	write.detail = func(m measured) string {
		cold := over(m.of(coldName, whoTarget, "iops"), m.of(coldName, whoReference, "iops"))
		if len(cold) == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f of a floor that receives into a large area", spreadOf(cold).Median)
	}
	list := []bound{
		share(nativeGroup, read32, "the floor", 0.85, "SPDK 0.65"),
		share(nativeGroup, "4K random read QD 128", "the floor", 0.85, "SPDK 0.60"),
		share(nativeGroup, write32, "the floor", 0.60, "SPDK 0.38"),
		polling, adaptive,
		share(nativeGroup, "128K read QD 16", "the floor", 0.95, "SPDK 1.0"),
		write,
		beside(read32+": both digests over none", digestsName, read32, 0.75, "SPDK 0.70"),
	}
	for _, w := range countedWorkloads() {
		list = append(list,
			plain(w.Name+": bytes allocated per I/O", w.Name, "allocated_bytes", nothing))
	}
	for _, w := range countedWorkloads() {
		list = append(list, plain(w.Name+": copies of the payload", w.Name, "copies", 0))
	}
	list = append(list,
		plain(idleName+": CPU time in % of a CPU", idleName, "cpu_percent", 0.5),
		bound{
			group: nativeGroup, claim: gcName + ": p99.9 over p50", limit: 3,
			value: func(m measured) []float64 {
				return over(m.of(gcName, whoTarget, "p99.9_us"), m.of(gcName, whoTarget, "p50_us"))
			},
			detail: func(m measured) string {
				without := over(m.of(read32, whoTarget, "p99.9_us"),
					m.of(read32, whoTarget, "p50_us"))
				if len(without) == 0 {
					return ""
				}
				floor := over(m.of(gcName, whoReference, "p99.9_us"),
					m.of(gcName, whoReference, "p50_us"))
				return fmt.Sprintf(
					"the floor itself %s; without any %.2f; p99.9 with over without %.2f",
					rounds(floor), spreadOf(without).Median,
					spreadOf(over(m.of(gcName, whoTarget, "p99.9_us"),
						m.of(read32, whoTarget, "p99.9_us"))).Median)
			},
		},
		beside(besideIdle+": IOPS over without them", besideIdle, read32, 0.85, ""))
	list = append(append(list, connectionBounds()...), rotationBounds()...)
	return append(list, fairnessBounds()...)
}

// connectionBounds are two claims for each number of connections: the IOPS of the target relative
// to its IOPS on one connection, and this ratio relative to the same ratio of the floor. With one
// command in flight on each connection there is nothing to batch, even for bare sockets.
func connectionBounds() []bound {
	var list []bound
	one := connectionsName(1)
	for _, n := range connections[1:] {
		many := connectionsName(n)
		keeps := func(m measured, who string) []float64 {
			return over(m.of(many, who, "iops"), m.of(one, who, "iops"))
		}
		what := fmt.Sprintf("%d connections over 1, %d in flight in all", n, inFlight)
		list = append(list,
			bound{
				group: nativeGroup, claim: what + ": IOPS", limit: 0.85, atLeast: true,
				value: func(m measured) []float64 { return keeps(m, whoTarget) },
				detail: func(m measured) string {
					return fmt.Sprintf("the floor itself: %.2f",
						spreadOf(keeps(m, whoReference)).Median)
				},
			},
			bound{
				group: nativeGroup, claim: what + ": share of the floor with as many", limit: 0.85,
				atLeast: true,
				value: func(m measured) []float64 {
					return over(keeps(m, whoTarget), keeps(m, whoReference))
				},
			})
	}
	return list
}

func fairnessBounds() []bound {
	var list []bound
	for _, f := range fairnessCases() {
		b := bound{group: nativeGroup, claim: f.name + ": p99 over their own alone", limit: 2}
		b.value = func(m measured) []float64 {
			return over(m.of(f.name, whoTarget, besideFigure), m.of(f.name, whoTarget, aloneFigure))
		}
		if f.think > 0 { // alone this is the latency of a wake-up: the bound is of p99 itself
			b.claim, b.limit = f.name+": p99 in µs", 1000
			b.value = func(m measured) []float64 { return m.of(f.name, whoTarget, besideFigure) }
		}
		b.detail = func(m measured) string {
			return fmt.Sprintf("p99 alone %.0f µs, beside %.0f µs, the deep queue got %.1f kIOPS",
				m.median(f.name, whoTarget, aloneFigure),
				m.median(f.name, whoTarget, besideFigure),
				m.median(f.name, whoTarget, deepFigure)/1e3)
		}
		list = append(list, b)
	}
	return list
}

// qemuGroup has the measurements under QEMU, where host and target have a CPU each; in spinGroup
// the target spins longer than by default.
const (
	qemuGroup = "rxe under QEMU"
	spinGroup = qemuGroup + ", spinning"
)

// labBounds are the claims of "make bench-lab".
func labBounds() []bound {
	var list []bound
	for _, group := range []string{"rxe", "siw", "tcp"} {
		for _, row := range []string{
			"4K random read QD 32", "4K random read QD 128", "4K random write QD 32",
			"4K random write QD 128",
			"128K read QD 16", "128K read QD 32", "128K read QD 128", "128K write QD 16",
			"128K write QD 32", "128K write QD 128",
		} {
			list = append(list, share(group, row, "nvmet", 1, ""))
		}
	}
	for _, kind := range []string{"read", "write"} {
		single := "4K random " + kind + " QD 1"
		for _, group := range []string{"rxe", "siw", "tcp"} {
			list = append(list,
				compared(group, single, "p50_us", "p50 over nvmet's, one CPU for both", 1.5, ""))
		}
		peer := map[string]string{"read": "SPDK 0.90", "write": "SPDK 1.46"}[kind]
		for _, group := range []string{qemuGroup, spinGroup} {
			list = append(list, compared(group, single, "p50_us", "p50 over nvmet's", 1, peer))
		}
	}
	for _, group := range []string{"rxe", "siw"} {
		for _, l := range labLimits {
			list = append(list, ofLimit(group, l.workload, l.limit))
		}
	}
	return list
}

// labLimits are the perftest programs that transfer data in the same way: the target uses RDMA
// WRITE for reads and RDMA READ for writes.
var labLimits = []struct{ workload, limit string }{
	{"128K read QD 16", "ib_write_bw 128K"},
	{"128K read QD 16", "ib_write_bw 128K QD 16"},
	{"128K read QD 16 in one place", "ib_write_bw 128K QD 16"},
	{"128K write QD 16", "ib_read_bw 128K"},
	{"128K write QD 16", "ib_read_bw 128K QD 16"},
}

// ofLimit is the throughput of the target relative to perftest.
func ofLimit(group, workload, limit string) bound {
	b := bound{group: group, claim: workload + ": MiB/s over " + limit, limit: 0.9, atLeast: true}
	b.value = func(m measured) []float64 {
		return over(m.of(workload, whoTarget, "mib_s"), m.of(limit, whoLimit, "mib_s"))
	}
	b.detail = func(m measured) string {
		nvmet := over(m.of(workload, whoReference, "mib_s"), m.of(limit, whoLimit, "mib_s"))
		return fmt.Sprintf("nvmet: %.2f", spreadOf(nvmet).Median)
	}
	return b
}

// rounds formats the values of all rounds.
func rounds(values []float64) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = fmt.Sprintf("%.1f", v)
	}
	return strings.Join(words, " ")
}

// check is a bound with the measured value.
type check struct {
	Result string `json:"result"` // met, missed, or not measured
	Claim  string `json:"claim"`
	// Value is nil if it was not measured.
	Value *spread `json:"value,omitempty"`
	// Bound is the maximum of the median, or the minimum if AtLeast is set.
	Bound   float64 `json:"bound"`
	AtLeast bool    `json:"at_least,omitempty"`
	// Peer is the value of other targets. Detail describes the origin of the value.
	Peer   string `json:"peer,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// evaluate checks the bound with the records.
func (b bound) evaluate(records []record) check {
	c := check{
		Result: "not measured", Claim: b.claim, Bound: b.limit, AtLeast: b.atLeast,
		Peer: b.peer,
	}
	if b.group != nativeGroup {
		c.Claim = b.group + ": " + b.claim
	}
	m := measured{records, b.group}
	values := b.value(m)
	if len(values) == 0 {
		return c
	}
	s := spreadOf(values)
	c.Value = &s
	c.Result = "missed"
	if s.Median == b.limit || (s.Median > b.limit) == b.atLeast {
		c.Result = "met"
	}
	if b.detail != nil {
		c.Detail = b.detail(m)
	}
	return c
}

// evaluateAll checks all bounds. It includes unmeasured ones only if everything was to be measured.
func evaluateAll(bounds []bound, records []record, everything bool) []check {
	var list []check
	for _, b := range bounds {
		if c := b.evaluate(records); c.Value != nil || everything {
			list = append(list, c)
		}
	}
	return list
}
