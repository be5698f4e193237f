package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// This file formats the answers of the target for people.

// table writes rows with aligned columns; the first row is the header. On a narrow terminal it
// leaves out optional columns; a table that has none gets a line for each cell.
type table struct {
	out   io.Writer
	rows  [][]string
	width int // of the terminal; 0: none
	most  int // lines, 0 for all
	// optional are the names of columns to leave out if there is no room, in this order, after
	// reducing the space between columns. After that, lines are cut off.
	optional []string
}

func newTable(w io.Writer) *table {
	t := &table{out: w}
	t.width, _ = screen(w)
	return t
}

// screen returns the size of a terminal, or zeros.
func screen(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		if s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return int(s.Col), int(s.Row)
		}
	}
	return 0, 0
}

// row adds a row. flush returns its error.
func (t *table) row(cells ...any) {
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = plain(fmt.Sprint(c))
	}
	t.rows = append(t.rows, text)
}

func (t *table) line(text string) { t.rows = append(t.rows, []string{text}) }

func (t *table) flush() error {
	const space = 2 // between columns
	lines := aligned(t.rows, space)
	for _, name := range append([]string{""}, t.optional...) {
		if t.fits(lines) || t.optional == nil {
			break
		}
		t.rows = without(t.rows, name)
		lines = aligned(t.rows, space-1)
	}
	switch {
	case t.fits(lines):
	case t.optional == nil:
		lines = aligned(records(t.rows), space)
	default:
		for i, l := range lines {
			if len(t.rows[i]) > 1 {
				lines[i] = cut(l, t.width)
			}
		}
	}
	if t.most > 0 {
		lines = lines[:min(len(lines), t.most)]
	}
	_, err := io.WriteString(t.out, strings.Join(lines, ""))
	return err
}

// fits reports whether the lines fit the terminal. A row of a single cell may wrap.
func (t *table) fits(lines []string) bool {
	for i, l := range lines {
		if t.width > 0 && len(t.rows[i]) > 1 && utf8.RuneCountInString(l)-1 > t.width {
			return false
		}
	}
	return true
}

// cut shortens a line to a width.
func cut(line string, width int) string {
	r := []rune(strings.TrimSuffix(line, "\n"))
	if len(r) > width {
		r = append(r[:max(width-1, 0)], '…')
	}
	return string(r) + "\n"
}

func without(rows [][]string, name string) (list [][]string) {
	column := -1
	for _, r := range rows {
		if column < 0 && len(r) > 1 {
			column = slices.Index(r, name)
		}
		if column >= 0 && column < len(r) && len(r) > 1 {
			r = slices.Delete(slices.Clone(r), column, column+1)
		}
		list = append(list, r)
	}
	return list
}

// aligned aligns the columns of rows, one line each. A row of a single cell is in no column.
func aligned(rows [][]string, space int) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, space, ' ', 0)
	for _, r := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(r, "\t")) // nothing fails
	}
	_ = w.Flush()
	return slices.Collect(strings.Lines(b.String()))
}

// records turns each row into one for each cell, with the name of its column if there is one.
func records(rows [][]string) (list [][]string) {
	var names []string
	for _, r := range rows {
		lower := strings.ContainsFunc(strings.Join(r, ""), unicode.IsLower)
		switch {
		case names == nil && len(r) > 2 && !lower:
			names = r
		case len(r) != len(names):
			list = append(list, r)
		default:
			for i, cell := range r {
				list = append(list, []string{names[i], cell})
			}
			list = append(list, []string{""})
		}
	}
	return list
}

// plain quotes text that a terminal might not print as it is, since names come from peers.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// size formats a number of bytes in the largest unit that gives at least 1.
func size[T int64 | uint64](n T) string {
	const units = "KMGTPE"
	v, unit := float64(n), -1
	for v >= 1024 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	if unit < 0 {
		return fmt.Sprintf("%d B", n)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + units[unit:unit+1] +
		"iB"
}

// span formats a time in seconds with about three digits.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d/time.Hour%24)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d/time.Minute%60)
	case d >= time.Minute:
		return d.Round(time.Second).String()
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
}

// brief formats seconds with three digits: 12.3µs.
func brief(seconds float64) string {
	d := time.Duration(math.Round(seconds * 1e9))
	unit := time.Duration(1)
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

// duration is brief, or "-" for zero.
func duration(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return brief(seconds)
}

// stamp formats a time in the time zone of this machine.
func stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

func yes(b bool, text string) string {
	if b {
		return text
	}
	return "-"
}

// or returns text, or "-" if it is empty.
func or(text string) string { return yes(text != "", text) }

// attributes formats keys and values as in the log, with before in front of the first.
func attributes(before string, list []observed.Attribute) string {
	var b strings.Builder
	for _, a := range list {
		value := plain(a.Value)
		if value == a.Value && strings.ContainsAny(value, " =\"") {
			value = strconv.Quote(value)
		}
		b.WriteString(before + plain(a.Key) + "=" + value)
		before = " "
	}
	return b.String()
}

func status(t *table, s observed.Status) {
	t.row("version", s.Version)
	t.row("process", s.PID)
	t.row("started", stamp(s.Started)+", "+span(s.UptimeSeconds)+" ago")
	t.row("listeners", and(s.Listeners, "up", s.WaitingListeners, "waiting")+
		also(s.DrainedListeners, "drained"))
	if len(s.RDMAStacks) > 0 {
		t.row("rdma", strings.Join(s.RDMAStacks, ", "))
	}
	t.row("subsystems", s.Subsystems)
	t.row("namespaces", and(s.Namespaces, "served", s.PendingNamespaces, "pending"))
	for _, n := range s.Pending {
		t.row("pending", fmt.Sprintf("namespace %d of %s: %s", n.NSID, n.Subsystem, n.Reason))
	}
	if more := s.PendingNamespaces - len(s.Pending); more > 0 && len(s.Pending) > 0 {
		t.row("pending", fmt.Sprintf("%d more", more))
	}
	t.row("controllers", s.Controllers)
	t.row("connections", s.Connections)
	for i := range s.Shares {
		t.row("share", share(&s.Shares[i]))
	}
}

// share formats a share: "tcp, NQN, not proven: 9 of 400 connections, ..."
func share(s *observed.Share) string {
	who := s.Network
	switch {
	case s.Proven:
		who = s.Host
	case s.Host != "":
		who = s.Host + ", not proven"
	}
	return fmt.Sprintf("%s, %s: %d of %d connections, %s of %s of queue memory, %s of %s of data "+
		"memory", s.Transport, who, s.Connections, s.MostConnections, size(s.QueueMemory),
		size(s.MostQueueMemory), size(s.DataMemory), size(s.MostDataMemory))
}

// and returns "2 up" or "2 up, 1 waiting".
func and(n int, what string, more int, other string) string {
	return fmt.Sprintf("%d %s", n, what) + also(more, other)
}

// also returns ", 1 waiting", or "" for 0.
func also(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d %s", n, what)
}

func listeners(t *table, list []observed.Listener) {
	t.row("PORT ID", "TRANSPORT", "ADDRESS", "STATE", "CONNECTIONS", "LISTENER", "REASON")
	for _, l := range list {
		id := ""
		if l.PortID != 0 {
			id = fmt.Sprint(l.PortID)
		}
		transport := l.Transport
		if l.Stack != "" {
			transport += ", " + l.Stack
		}
		t.row(or(id), transport, l.Address, l.State, l.Connections, l.Name, or(l.Reason))
	}
}

func subsystems(t *table, list []observed.Subsystem) {
	t.row("NQN", "NAMESPACES", "CONTROLLERS", "SERIAL", "MODEL", "SECURITY",
		"ALLOWED HOSTS")
	for _, s := range list {
		allowed := or(strings.Join(s.Hosts, ", "))
		if s.AllowAnyHost {
			allowed = "any"
		}
		t.row(s.NQN, and(s.Namespaces, "served", s.PendingNamespaces, "pending"), s.Controllers,
			s.Serial, s.Model, s.Security, allowed)
	}
}

func namespaces(t *table, list []observed.Namespace) {
	t.row("SUBSYSTEM", "NSID", "STATE", "SIZE", "BLOCK", "BACKEND", "PATH", "READS", "READ",
		"WRITES", "WRITTEN", "ERRORS", "REASON")
	for _, n := range list {
		state := n.State
		if n.WriteProtected {
			state += ", write protected"
		}
		var errors uint64
		for e := range maps.Values(n.Errors) {
			errors += e
		}
		t.row(n.Subsystem, n.NSID, state, size(n.SizeBytes), size(n.BlockSizeBytes), n.Backend,
			or(n.Path), n.Reads, size(n.ReadBytes), n.Writes, size(n.WrittenBytes), errors,
			or(n.Reason))
	}
}

func hosts(t *table, list []observed.Host) {
	t.row("HOST", "SUBSYSTEM", "CNTLID", "TRANSPORT", "REMOTE", "QUEUES", "READY")
	for _, h := range list {
		t.row(h.NQN, h.Subsystem, h.CNTLID, h.Transport, h.Remote, h.Queues, yes(h.Ready, "yes"))
	}
}

func connections(t *table, list []observed.Connection) {
	t.row("HOST", "SUBSYSTEM", "CNTLID", "QID", "TRANSPORT", "REMOTE", "LOCAL", "REACTOR", "DEPTH",
		"IN FLIGHT", "AGE", "KEEP ALIVE LEFT", "RTT", "RESENT", "DIGESTS", "TLS")
	for _, c := range list {
		left := "-"
		if c.KeepAliveTimeoutSeconds > 0 {
			left = span(c.KeepAliveLeftSeconds) + " of " + span(c.KeepAliveTimeoutSeconds)
		}
		digests := slices.DeleteFunc([]string{
			yes(c.HeaderDigest, "header"),
			yes(c.DataDigest, "data"),
		}, func(s string) bool { return s == "-" })
		t.row(or(c.Host), or(c.Subsystem), c.CNTLID, c.QID, c.Transport, c.Remote, c.Local,
			c.Reactor, c.Depth, c.InFlight, span(c.AgeSeconds), left, duration(c.RTTSeconds),
			c.Retransmits, or(strings.Join(digests, ", ")), or(c.TLS))
	}
}

func latencies(t *table, list []observed.Latency) {
	if len(list) == 0 {
		t.line("no commands yet")
	}
	for i, l := range list {
		if i > 0 {
			t.line("")
		}
		host := cmp.Or(l.Host, "(other hosts)")
		t.line(plain(fmt.Sprintf("%s to %s %d: %s, %s, %s, %s", host, l.Subsystem, l.NSID,
			count(int(l.IOs), l.Operation), count(int(l.Errors), "error"), size(l.Bytes),
			"most of the time in "+l.Dominant)))
		t.row("STAGE", "SHARE", "MEAN", "P50", "P99", "P99.9", "P99.99", "MAX", "SLOWEST")
		for _, s := range append(l.Stages, l.Total) {
			t.row(s.Stage, fmt.Sprintf("%.0f%%", 100*s.Share), brief(s.MeanSeconds),
				brief(s.P50Seconds), brief(s.P99Seconds), brief(s.P999Seconds),
				brief(s.P9999Seconds), brief(s.MaxSeconds), brief(s.SlowestSeconds))
		}
	}
}

func refusals(t *table, list []observed.Refusal) {
	t.row("LAST", "TIMES", "REMOTE", "WHAT", "EXPECTED", "RECEIVED", "HINT", "DETAILS")
	for _, r := range list {
		t.row(stamp(r.Last), r.Count, r.Remote, r.Message, or(r.Expected), or(r.Received),
			or(r.Hint), attributes("", r.Attributes))
	}
}

func objects(t *table, list []observed.Configured) {
	t.row("PATH", "MANAGED", "PLACE")
	for _, o := range list {
		t.row(o.Path, yes(o.Managed, "yes"), o.Place)
	}
}

func planned(t *table, p control.Plan) { changes(t, p, "to apply") }

// changes prints the changes, warnings first, and their number.
func changes(t *table, p control.Plan, done string) {
	restart := 0
	for _, w := range p.Warnings {
		t.row(w)
	}
	for _, c := range p.Changes {
		if c.NeedsRestart {
			restart++
		}
		t.row(c.Text)
		for _, line := range affected(c.Affected) {
			t.row(line)
		}
	}
	switch n := len(p.Changes) - restart; {
	case len(p.Changes) == 0:
		t.row("nothing to do")
	case restart > 0:
		t.row(count(n, "change") + " " + done + ", " + count(restart, "change") +
			" at the next restart")
	default:
		t.row(count(n, "change") + " " + done)
	}
}
