package web

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rates"
)

// maxRows is the number of rows of a table for a browser, rows with problems first.
const maxRows = 100

// state is the answer to a browser.
type state struct {
	Time time.Time `json:"time"`
	// Elapsed is the time in seconds on the clock used by points.
	Elapsed    float64             `json:"elapsed"`
	Summary    summary             `json:"summary"`
	Status     observed.Status     `json:"status"`
	Findings   []finding           `json:"findings"`
	Listeners  []observed.Listener `json:"listeners"`
	Subsystems []subsystem         `json:"subsystems"`
	Namespaces []namespace         `json:"namespaces"`
	Total      *point              `json:"total"` // of all namespaces
	Traffic    traffic             `json:"traffic"`
	Hosts      []association       `json:"hosts"`
	Disks      []observed.Disk     `json:"disks"`
	Groups     []observed.Group    `json:"groups"`
	Refusals   []observed.Refusal  `json:"refusals"`
	Events     []observed.Event    `json:"events"`
	Plan       configuration       `json:"plan"`
	More       map[string]int      `json:"more"` // number of rows left out, by table
	Errors     map[string]string   `json:"errors"`

	load []doctor.Finding
}

// traffic has the counters of all namespaces.
type traffic struct {
	Reads        uint64 `json:"reads"`
	Writes       uint64 `json:"writes"`
	ReadBytes    uint64 `json:"read_bytes"`
	WrittenBytes uint64 `json:"written_bytes"`
	Ready        int    `json:"ready"` // namespaces
	// Hosts is the number of connected hosts, which may have several controllers each.
	Hosts int `json:"hosts"`
}

// subsystem has only the first of its Hosts.
type subsystem struct {
	observed.Subsystem
	HostCount int `json:"host_count"`
}

type namespace struct {
	observed.Namespace
	Point *point `json:"point"` // the growth since the last state
}

// association is a host at a subsystem on one path.
type association struct {
	Host      string  `json:"host"`
	Subsystem string  `json:"subsystem"`
	CNTLID    uint16  `json:"cntlid"`
	Transport string  `json:"transport"`
	Local     string  `json:"local"`
	Remote    string  `json:"remote"`
	Queues    int     `json:"queues"`
	Depth     int     `json:"depth"` // of the largest I/O queue
	InFlight  int     `json:"in_flight"`
	RTT       float64 `json:"rtt_seconds"` // the longest of a queue; 0: unknown
	Resent    uint64  `json:"retransmits"`
	TLS       string  `json:"tls"`
	Age       float64 `json:"age_seconds"`
	KeepAlive float64 `json:"keep_alive_left_seconds"`
	Timeout   float64 `json:"keep_alive_timeout_seconds"` // 0: none
	Read      uint64  `json:"read_bytes"`
	Written   uint64  `json:"written_bytes"`
}

// configuration has the changes in the configuration file.
type configuration struct {
	Known bool      `json:"known"`
	Time  time.Time `json:"time"`
	Error string    `json:"error"`
	control.Plan
}

// newState asks src. Facts that cannot be found are missing, and Errors has the reason.
func newState(ctx context.Context, of *sampler, found *slow, load *past) *state {
	src, elapsed := &of.src, of.elapsed()
	s := &state{
		Time: load.now(), Elapsed: elapsed.Seconds(), Status: src.Status(), More: map[string]int{},
		Errors:     map[string]string{},
		Subsystems: []subsystem{}, Namespaces: []namespace{}, // not null
		Plan: configuration{
			!found.planTime.IsZero(), found.planTime, found.planErr, found.plan,
		},
	}
	s.Listeners = first(s, "listeners", src.Listeners(), func(l *observed.Listener) bool {
		return l.State != "up"
	})
	s.Plan.Changes = first(s, "changes", s.Plan.Changes, nil)
	now := doctor.Sample{Subsystems: src.Subsystems()}
	for _, n := range first(s, "subsystems", now.Subsystems, func(n *observed.Subsystem) bool {
		return n.PendingNamespaces > 0
	}) {
		hosts := len(n.Hosts)
		n.Hosts = n.Hosts[:min(hosts, maxRows)]
		s.Subsystems = append(s.Subsystems, subsystem{n, hosts})
	}
	s.namespaces(ctx, of, elapsed, &now)
	s.hosts(ctx, src, &now)
	s.compare(ctx, src, &now, load)
	s.Disks = first(s, "disks", found.disks, isBad)
	if found.diskErr != "" {
		s.Errors["disks"] = found.diskErr
	}
	s.Groups = first(s, "groups", src.Groups(), isTroubled)
	s.Refusals = first(s, "refusals", src.Refusals(), nil)
	events, _ := src.Events(0)
	slices.Reverse(events)
	s.Events = first(s, "events", events, nil)
	s.Findings = findings(s)
	s.summarize()
	return s
}

func (s *state) summarize() {
	s.Summary = summary{
		Time: s.Time, Ready: s.Traffic.Ready, Hosts: s.Traffic.Hosts,
		Namespaces: s.Status.Namespaces + s.Status.PendingNamespaces,
		Read:       rates.Per(s.Total.read, float64(s.Total.seconds)),
		Written:    rates.Per(s.Total.written, float64(s.Total.seconds)),
	}
	for _, f := range s.Findings {
		if f.Severity != "note" {
			s.Summary.Problems++
		}
	}
}

// compare compares the counters with an earlier look. Unknown values are not compared.
func (s *state) compare(ctx context.Context, src *Source, now *doctor.Sample, load *past) {
	reactors, err := src.Reactors(ctx)
	if err != nil {
		s.Errors["reactors"] = err.Error()
	}
	if len(s.Errors) > 0 {
		return
	}
	now.Reactors, now.Hosts, now.Ports = reactors, src.Hosts(), src.PortCounters()
	now.Time = load.now()
	if before := load.before(now); before != nil {
		s.load = doctor.Load(before, now)
	}
}

// first returns the rows that a browser gets.
func first[T any](s *state, table string, rows []T, bad func(*T) bool) []T {
	if len(rows) <= maxRows {
		return append([]T{}, rows...)
	}
	s.More[table] = len(rows) - maxRows
	if bad != nil {
		rows = slices.Clone(rows)
		slices.SortStableFunc(rows, func(a, b T) int {
			return cmp.Compare(order(bad(&a)), order(bad(&b)))
		})
	}
	return rows[:maxRows]
}

func order(bad bool) int {
	if bad {
		return 0
	}
	return 1
}

func isTroubled(g *observed.Group) bool { return g.Problem != "" || g.Holder == "" }

func isBad(d *observed.Disk) bool {
	return d.Health.State == "warning" || d.Health.State == "failing"
}

// namespaces adds the load to namespaces.
func (s *state) namespaces(ctx context.Context, of *sampler, elapsed time.Duration,
	now *doctor.Sample,
) {
	latencies, err := of.src.Latency(ctx)
	now.Latencies = latencies
	if err != nil {
		s.Errors["latency"] = err.Error()
	}
	list := of.src.Namespaces()
	now.Namespaces = list
	points := of.history.look(elapsed, list, latencies, err == nil)
	s.Total = points[""]
	for i := range list {
		n := &list[i]
		s.Traffic.Reads += n.Reads
		s.Traffic.Writes += n.Writes
		s.Traffic.ReadBytes += n.ReadBytes
		s.Traffic.WrittenBytes += n.WrittenBytes
		if n.State == "ready" || n.State == "standby" {
			s.Traffic.Ready++
		}
	}
	list = first(s, "namespaces", list, func(n *observed.Namespace) bool {
		return n.State != "ready" && n.State != "standby"
	})
	for _, n := range list {
		s.Namespaces = append(s.Namespaces, namespace{n, points[nameOf(n.Subsystem, n.NSID)]})
	}
}

// hosts groups the queues of each controller. All connections without a successful Connect command
// are one row, so that they take no rows from hosts.
func (s *state) hosts(ctx context.Context, src *Source, now *doctor.Sample) {
	type name struct {
		host, nqn string
		cntlid    uint16
	}
	all := map[name]*association{}
	list, err := src.Connections(ctx)
	now.Connections = list
	if err != nil {
		s.Errors["hosts"] = err.Error()
	}
	for _, c := range list {
		key := name{c.Host, c.Subsystem, c.CNTLID}
		a := all[key]
		if a == nil {
			a = &association{
				Host: c.Host, Subsystem: c.Subsystem, CNTLID: c.CNTLID, Transport: c.Transport,
				Local: c.Local.String(), Remote: c.Remote.Addr().Unmap().String(), TLS: c.TLS,
				KeepAlive: c.KeepAliveLeftSeconds, Timeout: c.KeepAliveTimeoutSeconds,
			}
			all[key] = a
		}
		a.Queues++
		if c.QID != 0 {
			a.Depth = max(a.Depth, c.Depth)
		}
		a.RTT = max(a.RTT, c.RTTSeconds)
		a.Resent += c.Retransmits
		a.InFlight += c.InFlight
		a.Age = max(a.Age, c.AgeSeconds)
		a.Read += c.ReadBytes
		a.Written += c.WrittenBytes
	}
	rows, hosts := make([]association, 0, len(all)), map[string]bool{}
	for _, a := range all {
		rows = append(rows, *a)
		hosts[a.Host] = true
	}
	delete(hosts, "") // the one for connections without a controller
	s.Traffic.Hosts = len(hosts)
	slices.SortFunc(rows, func(a, b association) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Subsystem, b.Subsystem),
			cmp.Compare(a.CNTLID, b.CNTLID))
	})
	s.Hosts = first(s, "hosts", rows, nil)
}
