package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
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
	// P50 and P99 are the median and the 99th percentile of the latency of completed commands;
	// reactors have none.
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

// sortBy sorts rows by the key that the user pressed, largest first; n is the name.
func (r *load) sortBy(key byte) {
	value := func(v rate) float64 {
		switch key {
		case 'i':
			return v.IOPS
		case 'b':
			return v.ReadBytes + v.WrittenBytes
		case 'l':
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

// topCommand shows rates, on a terminal until the user leaves.
func topCommand() *cobra.Command {
	var o options
	n, interval := 0, time.Second
	cmd := &cobra.Command{
		Use: "top", Short: "Show the load of hosts, namespaces and reactors continuously",
		Long: "Show the load of hosts, namespaces and reactors: I/O per second, bandwidth, and " +
			"load, which is the commands in flight of hosts, the time with I/O outstanding of " +
			"namespaces (100% for each reactor), and the time in which reactors do not sleep. If " +
			"the terminal has 132 columns, also the latency that 50% and 99% of the commands of " +
			"the interval did not exceed, and the stage that took most of the time (see " +
			"nvmf-target latency). On a terminal the keys i, b, l and n sort by IOPS, bandwidth, " +
			"load or name, and q quits. Elsewhere, and with -n or -o json, it prints a table, or " +
			"an object in one line, for each interval. The first one comes after one interval.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond || interval > time.Hour {
				return fmt.Errorf("--interval is 100ms to 1h, not %v", interval)
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			defer c.Close()
			out, isFile := cmd.OutOrStdout().(*os.File)
			in, alsoFile := cmd.InOrStdin().(*os.File)
			if n == 0 && o.output == "text" && isFile && alsoFile {
				t, err := openTerminal(in, out)
				if err == nil {
					return t.show(cmd.Context(), c, interval)
				}
			}
			return printRates(cmd.Context(), c, cmd.OutOrStdout(), &o, n, interval)
		},
	}
	o.add(cmd)
	cmd.Flags().IntVarP(&n, "count", "n", 0, "print this many and end (0: until interrupted)")
	cmd.Flags().DurationVarP(&interval, "interval", "i", time.Second, "time between two looks")
	return cmd
}

// printRates prints n tables or objects; 0 means no limit.
func printRates(ctx context.Context, c *control.Client, w io.Writer, o *options, n int,
	interval time.Duration,
) error {
	old, err := ask(ctx, c)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := 0; err == nil && (i < n || n == 0); i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		var now snapshot
		if now, err = ask(ctx, c); err != nil {
			break
		}
		r := between(&old, &now)
		r.sortBy('n')
		old = now
		if o.output == "json" {
			err = json.NewEncoder(w).Encode(r) // one per line
			continue
		}
		t := newTable(w)
		t.line(stamp(r.Time))
		r.tables(func(title string, rows []rate) {
			t.line(title + "\t" + strings.Join(headings(title), "\t"))
			for _, v := range rows {
				t.line(plain(v.Name) + "\t" + strings.Join(v.cells(title), "\t"))
			}
		})
		t.line("")
		err = t.flush()
	}
	return err
}
