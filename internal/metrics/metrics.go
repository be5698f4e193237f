// Package metrics exports snapshots of a running target to Prometheus, taken at each scrape.
// Nothing here runs on a reactor, and no scrape waits for a drive.
package metrics

import (
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Source has the exported values. Several goroutines may call its functions at once. They may
// briefly wait for a reactor, but for nothing else.
type Source struct {
	// Source has namespaces with every reason in Errors.
	observed.Source
	// Patience is the longest wait for an answer of Reactors.
	Patience time.Duration
	Version  string
	// Pending returns the number of namespaces with missing storage. During a change, more
	// namespaces may have the state pending.
	Pending func() int
	Limits  func() []qos.Info
	// Transports has connections and memory of queues by the name of the transport.
	Transports map[string]func() fabric.Usage
	// Kinds returns the number of refusals of peers, by kind.
	Kinds func() map[string]uint64
	// Latencies returns the latencies of commands, nil if a reactor does not answer.
	Latencies func() []observe.LatencyInfo
	// AuditLost returns the number of records that are missing in the audit file.
	AuditLost func() uint64
	// Paths returns the hosts named in the configuration, and one entry for all others, and Secured
	// the security of connections. They are nil if a reactor does not answer.
	Paths func() ([]Host, Secured)
	// Authentications returns the numbers of successes and failures.
	Authentications func() (succeeded, failed uint64)
	// Devices returns the RDMA devices in use.
	Devices func() []observed.Device
	// Unsaved reports whether the last write of port IDs or promises to hosts failed.
	Unsaved func() bool
	// Expiries returns certificates and keys that end.
	Expiries func() []Expiry
}

// otherWarnings are the bits for persistent memory regions and bits of later versions.
const otherWarnings = ^uint8(nvme.SMARTSpareLow | nvme.SMARTTemperature | nvme.SMARTReliability |
	nvme.SMARTReadOnly | nvme.SMARTVolatileMemory)

// warnings names the bits of the critical warning (Base section 5.1.12.1.3).
var warnings = []struct {
	bits uint8
	name string
}{
	{nvme.SMARTSpareLow, "spare_low"},
	{nvme.SMARTTemperature, "temperature"},
	{nvme.SMARTReliability, "reliability_degraded"},
	{nvme.SMARTReadOnly, "read_only"},
	{nvme.SMARTVolatileMemory, "volatile_memory_backup_failed"},
	{otherWarnings, "other"},
}

// collector makes metrics of a Source at each scrape.
type collector struct{ src Source }

// Describe sends nothing, because the metrics depend on the configuration and the drives.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends all metrics. The registry turns a panic into an error of the scrape.
func (c collector) Collect(out chan<- prometheus.Metric) {
	s := sink{out: out}
	s.gauge("build_info", "1, labelled with the version of the target and of Go.",
		1, "version", text(c.src.Version), "goversion", runtime.Version())
	s.gauge("namespaces_pending", "Configured namespaces with missing storage.",
		float64(c.src.Pending()))
	var completed, broken uint64
	for name, usage := range c.src.Transports {
		u, s := usage(), s.with("transport", name)
		completed, broken = completed+u.Handshakes, broken+u.FailedHandshakes
		s.gauge("connections", "Connections (queues) that are open, by transport.",
			float64(u.Connections))
		s.gauge("connections_unassociated",
			"Connections without a successful Connect command, or with a host that has yet to "+
				"authenticate, by transport.", float64(u.Unassociated))
		s.gauge("connections_discovery", "Connections of discovery controllers, by transport.",
			float64(u.Discovery))
		s.counter("connections_refused_total",
			"Connections and Connect commands that would have exceeded a limit, by transport.",
			float64(u.Refused))
		s.counter("connections_evicted_total",
			"Connections that ended because newer ones took their place, by transport.",
			float64(u.Evicted))
		s.counter("connects_over_share_total",
			"Connect commands that were refused because of a share of a host or network, by "+
				"transport.", float64(u.OverShare))
		s.counter("connections_out_of_turn_total",
			"Connections refused to networks that have failed, while others waited, by transport.",
			float64(u.OutOfTurn))
		s.gauge("queue_memory_bytes", "Memory that is counted for queues, by transport.",
			float64(u.Memory))
		s.gauge("queue_memory_limit_bytes", "The configured limit of queue_memory_bytes.",
			float64(u.MemoryLimit))
		s.counter("quarantined_queues_total",
			"Queues that could not be destroyed; their memory is kept, by transport.",
			float64(u.Quarantined))
	}
	for outcome, n := range map[string]uint64{"succeeded": completed, "failed": broken} {
		s.counter("tls_handshakes_total", "TLS handshakes of hosts, by outcome.", float64(n),
			"outcome", outcome)
	}
	succeeded, failed := c.src.Authentications()
	for outcome, n := range map[string]uint64{"succeeded": succeeded, "failed": failed} {
		s.counter("authentications_total", "Authentications of queues by DH-HMAC-CHAP, by outcome.",
			float64(n), "outcome", outcome)
	}
	s.counter("audit_lost_records_total",
		"Records of the audit that could not be written to its file.", float64(c.src.AuditLost()))
	messages := c.src.Kinds()
	for message, n := range messages {
		s.counter("refusals_total",
			"Refusals of peers, and connections ended because of peers, by message.",
			float64(n), "message", message)
	}
	s.counter("connects_refused_total", "Connect commands that were refused; the log says why.",
		float64(messages["connect refused"]))
	for _, l := range c.src.Listeners() {
		s.gauge("listener_up", "1 if hosts can connect at the address.",
			boolean(l.State == "up"), "transport", l.Transport, "address", l.Address)
	}
	for _, g := range c.src.Groups() {
		groups(s, &g)
	}
	c.reactors(s)
	c.paths(s)
	c.controllers(s)
	for _, l := range c.src.Limits() {
		limits(s, &l)
	}
	c.latencies(s)
	for _, ns := range c.src.Namespaces() {
		s := s.ofNamespace(ns.Subsystem, ns.NSID)
		s.gauge("namespace_info",
			"1, labelled with the backend of the namespace and the path of its storage.",
			1, "backend", ns.Backend, "path", text(ns.Path))
		if ns.State != "pending" {
			namespace(s, &ns)
		}
	}
}

// controllers counts controllers and queues. NQNs are no labels, since hosts choose them.
func (c collector) controllers(s sink) {
	type key struct{ sub, transport string }
	type sum struct{ controllers, queues int }
	sums := map[key]sum{}
	for _, i := range c.src.Hosts() {
		k := key{i.Subsystem, i.Transport}
		n := sums[k]
		sums[k] = sum{n.controllers + 1, n.queues + i.Queues}
	}
	for k, n := range sums {
		s.gauge("controllers",
			"Controllers, which is hosts times paths, by subsystem and transport.",
			float64(n.controllers), "subsystem", k.sub, "transport", k.transport)
		s.gauge("controller_queues", "Queues of these controllers, admin queues included.",
			float64(n.queues), "subsystem", k.sub, "transport", k.transport)
	}
}

// limits exports the waits at the limits of an object. Hosts with limits are configured ones.
func limits(s sink, l *qos.Info) {
	of := "host"
	switch {
	case l.NSID != 0:
		of, s = "namespace", s.ofNamespace(l.SubNQN, l.NSID)
	case l.SubNQN != "":
		of, s = "subsystem", s.with("subsystem", l.SubNQN)
	default:
		s = s.with("host", l.HostNQN)
	}
	s.counter(of+"_limit_waits_total", "Commands that have waited at limits of the "+of+".",
		float64(l.Waits))
	s.counter(of+"_limit_wait_seconds_total", "How long these commands have waited, in all.",
		l.WaitSeconds)
}

func groups(s sink, g *observed.Group) {
	if g.Cluster == "" { // another gateway may serve the group all the same
		return
	}
	s = s.with("cluster", text(g.Cluster), "pool", text(g.Pool), "ana_group",
		strconv.Itoa(int(g.ANAGroup)))
	s.gauge("group_differences",
		"Settings of this gateway and of others for the ANA group that do not fit.",
		float64(len(g.Differences)))
	s.gauge("group_serving",
		"1 if this gateway serves the ANA group, which it shares with others.",
		boolean(g.State == "serving"))
	s.gauge("group_hosts", "1 if hosts that use the ANA group are connected to this gateway.",
		boolean(g.Hosts))
	s.gauge("group_fences",
		"Former holders of the ANA group that are fenced and have not come back.",
		float64(len(g.Fenced)))
	if g.CheckSeconds > 0 {
		s.gauge("group_fence_check_age_seconds",
			"Time since these fences were checked, at the gateway that serves the group.",
			g.CheckSeconds)
	}
}

func namespace(s sink, ns *observed.Namespace) {
	for op, n := range map[string]uint64{
		"read": ns.Reads, "write": ns.Writes, "flush": ns.Flushes, "write_zeroes": ns.WriteZeroes,
		"discard": ns.Discards,
	} {
		s.counter("namespace_commands_total",
			"Operations of the storage that succeeded, by kind; each range of a Dataset "+
				"Management is a discard. Those that failed are in namespace_errors_total.",
			float64(n), "op", op)
	}
	for op, n := range map[string]uint64{"read": ns.ReadBytes, "write": ns.WrittenBytes} {
		s.counter("namespace_bytes_total", "Bytes that reads and writes moved.", float64(n),
			"op", op)
	}
	for reason, n := range ns.Errors {
		s.counter("namespace_errors_total", "Operations of the storage that failed, by reason.",
			float64(n), "reason", reason)
	}
	s.counter("namespace_busy_seconds_total", "Time with I/O outstanding, summed over reactors.",
		ns.BusySeconds)
	s.gauge("namespace_size_bytes", "Size of the namespace.", float64(ns.SizeBytes))
	s.gauge("namespace_block_size_bytes", "Size of a logical block.", float64(ns.BlockSizeBytes))
	if ns.Allocated >= 0 {
		s.gauge("namespace_allocated_bytes",
			"Space that the content of a sparse file takes; measured every minute.",
			float64(ns.Allocated))
	}
	if ns.Free >= 0 {
		s.gauge("namespace_free_bytes",
			"Space that is left on the file system of a sparse file; measured every minute.",
			float64(ns.Free))
	}
	if ns.State != "standby" {
		s.gauge("namespace_ready", "0 while the storage is offline or does not answer.",
			boolean(ns.Ready))
	}
	s.gauge("namespace_degraded", "1 if accepted writes may be lost; nothing more is written.",
		boolean(ns.Degraded))
	s.gauge("namespace_write_protected",
		"1 if writes are refused: by the configuration, by the device, or because it is degraded.",
		boolean(ns.WriteProtected))
	s.gauge("namespace_volatile_cache",
		"1 if completed writes may be lost with the power until a flush.",
		boolean(ns.VolatileCache))
	s.counter("namespace_commands_given_up_total", "Commands that took longer than io_timeout.",
		float64(ns.Timeouts))
	s.gauge("namespace_orphans", "Operations of such commands that the storage still has.",
		float64(ns.Orphans))
	s.counter("namespace_returns_total",
		"How often storage that was offline or did not answer came back.", float64(ns.Returns))
	health(s, ns.Health, ns.Drive)
}

// health exports log 02h as far as it is known: little without a drive, or before its answer.
func health(s sink, l *nvme.SMARTLog, d *observed.Drive) {
	for _, w := range warnings {
		s.gauge("health_critical_warning", "The bits of the critical warning of log 02h.",
			boolean(l.CriticalWarning&w.bits != 0), "warning", w.name)
	}
	if d == nil {
		s.counter("health_media_errors_total", "Media and data integrity errors.",
			number(l.MediaErrors))
		return
	}
	s.gauge("namespace_drive_info", "1, labelled with the drive that holds the namespace.",
		1, "drive", text(d.ID))
	if d.Answered.IsZero() {
		return
	}
	s.gauge("namespace_drive_answered_timestamp_seconds",
		"When the drive last reported its health, in Unix time; it is asked every minute.",
		float64(d.Answered.UnixMilli())/1e3)
	if l.Temperature != 0 {
		s.gauge("health_temperature_celsius", "Temperature of the drive.",
			float64(l.Temperature)-273)
	}
	if hours := number(l.PowerOnHours); d.Counts || hours != 0 {
		s.counter("health_power_on_seconds_total", "Time under power; drives count it in hours.",
			hours*time.Hour.Seconds())
	}
	// Not before the first answer of the drive: its lifetime counters are no increase.
	s.counter("health_media_errors_total", "Media and data integrity errors.",
		number(l.MediaErrors))
	if !d.Counts { // it does not report the rest either
		return
	}
	s.gauge("health_available_spare_ratio", "Spare that is left.", float64(l.AvailableSpare)/100)
	s.gauge("health_available_spare_threshold_ratio", "Spare below which the drive warns.",
		float64(l.SpareThreshold)/100)
	s.gauge("health_used_ratio", "Endurance that is used up; it may exceed 1.",
		float64(l.PercentageUsed)/100)
	s.counter("health_error_log_entries_total", "Entries of the drive's error log over its life.",
		number(l.ErrorLogEntries))
	s.counter("health_unsafe_shutdowns_total", "Losses of power without notice.",
		number(l.UnsafeShutdowns))
}

// prefix begins every name. Names and labels do not change: alerts and dashboards use them.
const prefix = "nvmf_target_"

// sink receives the metrics of one scrape. labels are their common labels: names, each with its
// value.
type sink struct {
	out    chan<- prometheus.Metric
	labels []string
}

// with returns a sink for metrics with these labels.
func (s sink) with(labels ...string) sink { return sink{s.out, labels} }

func (s sink) ofNamespace(nqn string, nsid uint32, more ...string) sink {
	return s.with(append([]string{"subsystem", nqn, "nsid", strconv.Itoa(int(nsid))}, more...)...)
}

func (s sink) gauge(name, help string, v float64, labels ...string) {
	s.add(name, help, prometheus.GaugeValue, v, labels)
}

func (s sink) counter(name, help string, v float64, labels ...string) {
	s.add(name, help, prometheus.CounterValue, v, labels)
}

// add panics if the labels do not fit, which becomes an error of the scrape.
func (s sink) add(name, help string, t prometheus.ValueType, v float64, labels []string) {
	d, values := s.describe(name, help, labels)
	s.out <- prometheus.MustNewConstMetric(d, t, v, values...)
}

// descs has the description of each metric by its name.
var descs sync.Map

// describe returns the description of a metric, and the values of its labels.
func (s sink) describe(name, help string, labels []string) (*prometheus.Desc, []string) {
	var names, values []string
	for label := range slices.Chunk(slices.Concat(s.labels, labels), 2) {
		names, values = append(names, label[0]), append(values, label[1])
	}
	d, known := descs.Load(name)
	if !known {
		d, _ = descs.LoadOrStore(name, prometheus.NewDesc(prefix+name, help, names, nil))
	}
	return d.(*prometheus.Desc), values
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// number converts a counter of log 02h; none exceeds 64 bits in the life of a drive.
func number(u nvme.Uint128) float64 {
	v, ok := u.Uint64()
	if !ok {
		return math.MaxUint64
	}
	return float64(v)
}

// text makes the name of a drive or a build valid as a label.
func text(s string) string { return strings.ToValidUTF8(s, "?") }
