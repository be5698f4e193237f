package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// figures are the results of one measurement, by name: iops, mib_s, mean_us, p50_us, p99_us,
// p99.9_us, max_us; CPU time per I/O of the target process as user_us and system_us, of the whole
// machine as machine_us; and the figures of counts.go and fairness.go. Unknown figures are left
// out.
type figures map[string]float64

// record is one measurement, made here or in the lab, which writes one per line as JSON.
type record struct {
	// Group is the transport or link, Workload the row of the table.
	Group    string `json:"group"`
	Workload string `json:"workload"`
	// Size is the size of an I/O in bytes.
	Size int `json:"size"`
	// Who is the measured party: "target", "reference" for the comparison, or "limit" for the
	// fabric without NVMe.
	Who     string  `json:"who"`
	Figures figures `json:"figures"`
}

const (
	whoTarget    = "target"
	whoReference = "reference"
	whoLimit     = "limit"
)

// readRecords reads the records of the lab.
func readRecords(r io.Reader) ([]record, error) {
	var list []record
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var rec record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return nil, fmt.Errorf("record %d: %w", len(list)+1, err)
		}
		list = append(list, rec)
	}
	return list, lines.Err()
}

// spread is median, minimum and maximum over all rounds.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf requires at least one value. The median of an even number of values is the mean of the
// two in the middle.
func spreadOf(values []float64) spread {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return spread{(s[(n-1)/2] + s[n/2]) / 2, s[0], s[n-1]}
}

// over divides a by b round by round.
func over(a, b []float64) []float64 {
	n := min(len(a), len(b))
	q := make([]float64, n)
	for i := range n {
		q[i] = a[i] / b[i]
	}
	return q
}

// series returns the values of one figure in the matching records, in order.
func series(list []record, group, workload, who, figure string) []float64 {
	var values []float64
	for _, r := range list {
		if v, ok := r.Figures[figure]; ok && r.Group == group && r.Workload == workload &&
			r.Who == who {
			values = append(values, v)
		}
	}
	return values
}

// row summarizes all rounds of one workload.
type row struct {
	Group    string `json:"group"`
	Workload string `json:"workload"`
	Size     int    `json:"size"`
	// Target, Reference and Limit are spreads by the names of figures. They are empty without
	// records.
	Target    map[string]spread `json:"target,omitempty"`
	Reference map[string]spread `json:"reference,omitempty"`
	Limit     map[string]spread `json:"limit,omitempty"`
	// Ratio is IOPS of target over reference, round by round.
	Ratio *spread `json:"ratio,omitempty"`
	// AtLeast is the bound of Ratio, if there is a claim about it.
	AtLeast float64 `json:"at_least,omitempty"`
}

// rowsOf groups records into rows, in the order of their first records.
func rowsOf(list []record) []row {
	var rows []row
	for _, r := range list {
		if slices.ContainsFunc(rows,
			func(o row) bool { return o.Group == r.Group && o.Workload == r.Workload }) {
			continue
		}
		o := row{Group: r.Group, Workload: r.Workload, Size: r.Size}
		o.Target, o.Reference = spreads(list, r, whoTarget), spreads(list, r, whoReference)
		o.Limit = spreads(list, r, whoLimit)
		ratios := over(series(list, r.Group, r.Workload, whoTarget, "iops"),
			series(list, r.Group, r.Workload, whoReference, "iops"))
		if len(ratios) > 0 {
			s := spreadOf(ratios)
			o.Ratio = &s
		}
		rows = append(rows, o)
	}
	return rows
}

// spreads returns the figures of who in the row of r.
func spreads(list []record, r record, who string) map[string]spread {
	m := map[string]spread{}
	for _, other := range list {
		if other.Group != r.Group || other.Workload != r.Workload || other.Who != who {
			continue
		}
		for name := range other.Figures {
			if _, ok := m[name]; !ok {
				m[name] = spreadOf(series(list, r.Group, r.Workload, who, name))
			}
		}
	}
	return m
}
