package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rates"
)

// The target counts. top reads the counters repeatedly and prints their growth.

// snapshot has the counters of the target at one time.
type snapshot struct {
	at          time.Time
	namespaces  []observed.Namespace
	connections []observed.Connection
	reactors    []observed.Reactor
	latency     map[string]*observed.Spent // by title and name of the row
}

func ask(ctx context.Context, c *control.Client) (s snapshot, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s.at = time.Now()
	var list []observed.Latency
	err = cmp.Or(control.GetNamespaces.Into(ctx, c, &s.namespaces),
		control.GetConnections.Into(ctx, c, &s.connections),
		control.GetReactors.Into(ctx, c, &s.reactors), control.GetLatency.Into(ctx, c, &list))
	s.latency = distributions(list)
	return s, err
}

// distributions adds up the latencies of each host and of each namespace over all operations.
func distributions(list []observed.Latency) map[string]*observed.Spent {
	all := map[string]*observed.Spent{}
	for i := range list {
		l := &list[i]
		for _, row := range []string{
			"HOST" + l.Host,
			"NAMESPACE" + namespaceName(&observed.Namespace{Subsystem: l.Subsystem, NSID: l.NSID}),
		} {
			all[row] = cmp.Or(all[row], new(observed.Spent))
			all[row].Add(l)
		}
	}
	return all
}

// load is the work of the target between two snapshots.
type load struct {
	Time       time.Time `json:"time"`
	Seconds    float64   `json:"seconds"`
	Hosts      []rate    `json:"hosts"`
	Namespaces []rate    `json:"namespaces"`
	Reactors   []rate    `json:"reactors"`
}

// rate is one row: the work of a host, a namespace or a reactor per second.
type rate struct {
	// Name is the NQN of a host, "NQN NSID" of a namespace, the index of a reactor.
	Name string `json:"name"`
	// IOPS counts all commands of hosts, and the successful reads and writes of namespaces.
	IOPS         float64 `json:"iops"`
	ReadBytes    float64 `json:"read_bytes_per_second"`
	WrittenBytes float64 `json:"written_bytes_per_second"`
	// InFlight is the number of commands being executed; namespaces have none.
	InFlight int `json:"in_flight"`
	// Busy is the fraction of the time with I/O outstanding, summed over reactors. For a reactor it
	// is the fraction in which it did not sleep. Hosts have none.
	Busy float64 `json:"busy"`
	// P50 and P99 are quantiles of the latency of completed commands; reactors have none.
	P50 float64 `json:"p50_seconds,omitempty"`
	P99 float64 `json:"p99_seconds,omitempty"`
	// Stage is the stage in which these commands spent most time.
	Stage string `json:"stage,omitempty"`
}

// between computes the rates from one snapshot to the next. Restarted counters count from zero.
func between(old, now *snapshot) *load {
	seconds := now.at.Sub(old.at).Seconds()
	r := &load{Time: now.at, Seconds: seconds}
	per := func(now, old uint64) float64 { return rates.Per(rates.Growth(old, now), seconds) }
	rates.Each(old.namespaces, now.namespaces, namespaceName, func(o, n *observed.Namespace) {
		o = cmp.Or(o, n)
		r.Namespaces = append(r.Namespaces, rate{
			Name: namespaceName(n), IOPS: per(n.Reads+n.Writes, o.Reads+o.Writes),
			ReadBytes: per(n.ReadBytes, o.ReadBytes), WrittenBytes: per(n.WrittenBytes,
				o.WrittenBytes),
			Busy: max(n.BusySeconds-o.BusySeconds, 0) / seconds,
		})
	})
	for i, n := range now.reactors {
		v := rate{Name: fmt.Sprint(n.Index)}
		if i < len(old.reactors) {
			asleep := n.AsleepSeconds - old.reactors[i].AsleepSeconds
			v.Busy = min(max(1-asleep/seconds, 0), 1)
		}
		r.Reactors = append(r.Reactors, v)
	}
	r.connections(old, now, per)
	r.tables(func(title string, rows []rate) {
		for i := range rows {
			name := title + rows[i].Name
			if n := now.latency[name]; n != nil {
				d := n.Since(old.latency[name])
				rows[i].P50, rows[i].P99 = d.Took.Quantile(0.5), d.Took.Quantile(0.99)
				rows[i].Stage, _, _ = d.Most()
			}
		}
	})
	return r
}

// connections adds the work of connections to their hosts and reactors. A new connection has
// counted from zero since the last snapshot.
func (r *load) connections(old, now *snapshot, per func(now, old uint64) float64) {
	hosts := map[string]*rate{}
	connections := (*observed.Connection).ID
	rates.Each(old.connections, now.connections, connections, func(o, c *observed.Connection) {
		if o == nil && c.AgeSeconds > r.Seconds {
			o = c // the target asks its reactors one by one
		}
		o = cmp.Or(o, &observed.Connection{})
		add := func(v *rate) {
			v.IOPS += per(c.Commands, o.Commands)
			v.ReadBytes += per(c.ReadBytes, o.ReadBytes)
			v.WrittenBytes += per(c.WrittenBytes, o.WrittenBytes)
			v.InFlight += c.InFlight
		}
		if c.Reactor < len(r.Reactors) {
			add(&r.Reactors[c.Reactor])
		}
		if c.Host == "" {
			return
		}
		if hosts[c.Host] == nil {
			hosts[c.Host] = &rate{Name: c.Host}
		}
		add(hosts[c.Host])
	})
	for _, v := range hosts {
		r.Hosts = append(r.Hosts, *v)
	}
}

func namespaceName(n *observed.Namespace) string { return fmt.Sprint(n.Subsystem, " ", n.NSID) }

// sortKeys are the values of --sort.
var sortKeys = []string{"iops", "bandwidth", "load", "name"}

// sortBy sorts the rows of hosts and namespaces by a key, largest first.
func (r *load) sortBy(key string) {
	value := func(v rate) float64 {
		switch key {
		case "iops":
			return v.IOPS
		case "bandwidth":
			return v.ReadBytes + v.WrittenBytes
		case "load":
			return v.Busy + float64(v.InFlight)
		}
		return 0
	}
	for _, rows := range [][]rate{r.Hosts, r.Namespaces} {
		slices.SortFunc(rows, func(a, b rate) int {
			return cmp.Or(cmp.Compare(value(b), value(a)), strings.Compare(a.Name, b.Name))
		})
	}
}

// tables calls fn for each table with its title.
func (r *load) tables(fn func(title string, rows []rate)) {
	fn("HOST", r.Hosts)
	fn("NAMESPACE", r.Namespaces)
	fn("REACTOR", r.Reactors)
}

// cells are the columns of a row after its name.
func (v *rate) cells(title string) []string {
	load := fmt.Sprint(v.InFlight)
	if title != "HOST" {
		load = fmt.Sprintf("%.0f%%", 100*v.Busy)
	}
	return []string{
		fmt.Sprintf("%.0f", v.IOPS), size(uint64(v.ReadBytes)) + "/s",
		size(uint64(v.WrittenBytes)) + "/s", load, duration(v.P50), duration(v.P99), or(v.Stage),
	}
}

func headings(title string) []string {
	if title == "HOST" {
		return []string{"IOPS", "READ", "WRITTEN", "IN FLIGHT", "P50", "P99", "MOST IN"}
	}
	return []string{"IOPS", "READ", "WRITTEN", "BUSY", "P50", "P99", "MOST IN"}
}

// top has the flags of the command.
type top struct {
	options
	count    int
	interval time.Duration
	sort     string
}

func topCommand() *cobra.Command {
	var o top
	cmd := &cobra.Command{
		Use: "top", Short: "Show the load of hosts, namespaces and reactors continuously",
		Long: "Show the load of hosts, namespaces and reactors: I/O per second, bandwidth, and " +
			"load. The load of a host is the number of its commands in flight, that of a " +
			"namespace is the time with I/O outstanding (100% for each reactor), and that of a " +
			"reactor is the time in which it does not sleep. It also shows the latency that " +
			"50% and 99% of the commands of the interval did not exceed, and the stage that " +
			"took most of the time (see nvmf-target latency). On a terminal, each table " +
			"replaces the previous one, and columns that do not fit are left out. Elsewhere, " +
			"and with -n or -o json, it prints a table, or an object on one line, for each " +
			"interval. The first one comes after one interval.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd)
	f := cmd.Flags()
	f.IntVarP(&o.count, "count", "n", 0, "print this many tables and exit (0: until interrupted)")
	f.DurationVarP(&o.interval, "interval", "i", time.Second, "time between two tables")
	f.StringVar(&o.sort, "sort", sortKeys[0],
		"order of hosts and namespaces: "+strings.Join(sortKeys, ", "))
	return cmd
}

func (o *top) run(cmd *cobra.Command) error {
	if o.interval < 100*time.Millisecond || o.interval > time.Hour {
		return fmt.Errorf("--interval is 100ms to 1h, not %v", o.interval)
	}
	if !slices.Contains(sortKeys, o.sort) {
		return fmt.Errorf("--sort is %s, not %q", strings.Join(sortKeys, ", "), o.sort)
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	defer c.Close()
	old, err := ask(cmd.Context(), c)
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for i := 0; err == nil && (i < o.count || o.count == 0); i++ {
		select {
		case <-tick.C:
		case <-cmd.Context().Done():
			return context.Cause(cmd.Context())
		}
		var now snapshot
		if now, err = ask(cmd.Context(), c); err == nil {
			r := between(&old, &now)
			r.sortBy(o.sort)
			old, err = now, o.print(cmd.OutOrStdout(), r)
		}
	}
	return err
}

func (o *top) print(w io.Writer, r *load) error {
	if o.output == "json" {
		return json.NewEncoder(w).Encode(r) // one per line
	}
	t := newTable(w)
	if _, height := screen(w); height > 0 && o.count == 0 {
		t.most = height - 1
		if _, err := io.WriteString(w, clearScreen); err != nil {
			return err
		}
	}
	t.optional = []string{"MOST IN", "P99", "P50"}
	t.line(stamp(r.Time))
	r.tables(func(title string, rows []rate) {
		t.rows = append(t.rows, append([]string{title}, headings(title)...))
		for _, v := range rows {
			t.rows = append(t.rows, append([]string{plain(t.short(v.Name))}, v.cells(title)...))
		}
	})
	t.line("")
	return t.flush()
}

const (
	clearScreen = "\x1b[H\x1b[2J"
	// cellsWidth is the width of the columns that top never leaves out.
	cellsWidth = 56
)

// short shortens a name to the room that top leaves for it. NQNs differ at their end.
func (t *table) short(name string) string {
	r := []rune(name)
	if room := max(t.width-cellsWidth, 12); t.width > 0 && len(r) > room {
		return "…" + string(r[len(r)-room+1:])
	}
	return name
}
