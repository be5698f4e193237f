package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// Compare writes the figures of two reports beside each other, with the ratio of the second to the
// first. Warnings of other differences come first.
func Compare(out io.Writer, a, b *Report) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, w := range differences(a, b) {
		_, _ = fmt.Fprintln(t, "warning: "+w)
	}
	compared := 0
	for i := range min(len(a.Runs), len(b.Runs)) {
		ra, rb := a.Runs[i], b.Runs[i]
		for k := range min(len(ra.Groups), len(rb.Groups)) {
			ga, gb := ra.Groups[k].kinds(), rb.Groups[k].kinds()
			for kind, f := range ga {
				if f == nil || gb[kind] == nil {
					continue
				}
				compared++
				_, _ = fmt.Fprintf(t, "\n%s %s %s\tA\tB\tB/A\n", ra.Name, ra.Groups[k].Name,
					kindNames[kind])
				compareFigures(t, f, gb[kind])
			}
		}
		_, _ = fmt.Fprintf(t, "CPU time of the initiator in %%\t%.0f\t%.0f\t%s\n",
			(ra.User+ra.System)/ra.Seconds*100, (rb.User+rb.System)/rb.Seconds*100,
			ratio((ra.User+ra.System)/ra.Seconds, (rb.User+rb.System)/rb.Seconds))
	}
	if compared == 0 {
		_, _ = fmt.Fprintln(t, "The reports have nothing in common.")
	}
	return t.Flush()
}

func compareFigures(t io.Writer, a, b *Figures) {
	x, textsA := a.row()
	y, textsB := b.row()
	for i, name := range columns {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, textsA[i], textsB[i], ratio(x[i], y[i]))
	}
}

func ratio(a, b float64) string {
	if a == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", b/a)
}

// differences returns the differences that make reports hard to compare. The target may differ.
func differences(a, b *Report) (list []string) {
	add := func(what string, x, y any) {
		x, y = known(x), known(y)
		if x != y {
			list = append(list, fmt.Sprintf("%s differs: %v and %v", what, x, y))
		}
	}
	sa, sb := fields(a.Settings), fields(b.Settings)
	names := maps.Clone(sa)
	maps.Copy(names, sb)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if name != "seed" {
			add(name, sa[name], sb[name])
		}
	}
	add("transport", a.Target.Transport, b.Target.Transport)
	add("security", a.Target.Security, b.Target.Security)
	add("size of the namespace", a.Target.Bytes, b.Target.Bytes)
	add("block size", a.Target.BlockSize, b.Target.BlockSize)
	add("machine", a.Machine, b.Machine)
	add("version", a.Version, b.Version)
	for name, r := range map[string]*Report{"A": a, "B": b} {
		if r.Error != "" {
			list = append(list, fmt.Sprintf("%s is not complete: %q", name, r.Error))
		}
	}
	slices.Sort(list)
	return list
}

func known(v any) any {
	if v == nil {
		return "not set"
	}
	return v
}

// fields returns the settings by their names in JSON.
func fields(s Settings) map[string]any {
	m := map[string]any{}
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		panic(err) // only numbers and strings
	}
	return m
}
