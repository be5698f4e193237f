// Package metrics exports snapshots of a running target to Prometheus, taken at each scrape.
// Nothing here runs on a reactor, and no scrape waits for a drive.
package metrics

import (
	"runtime"
	"strconv"
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

// prefix begins every name. Names and labels do not change: alerts and dashboards use them.
const prefix = "nvmf_target_"

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, labels, nil)
}

// ofNamespace makes a Desc with the labels of all metrics of namespaces.
func ofNamespace(name, help string, more ...string) *prometheus.Desc {
	return desc(name, help, append([]string{"subsystem", "nsid"}, more...)...)
}

var (
	buildInfo = desc("build_info", "1, labelled with the version of the target and of Go.",
		"version", "goversion")

	pending = desc("namespaces_pending",
		"Configured namespaces with missing storage.")
	connections = desc("connections", "Connections (queues) that are open, by transport.",
		"transport")
	unassociated = desc("connections_unassociated",
		"Connections without a successful Connect command, or with a host that has yet to "+
			"authenticate, by transport.", "transport")
	discovery = desc("connections_discovery",
		"Connections of discovery controllers, by transport.", "transport")
	bySecurity = desc("connections_by_security",
		"Connections by security: none, auth, tls, or auth+tls.", "transport", "security")
	authentications = desc("authentications_total",
		"Authentications of queues by DH-HMAC-CHAP, by outcome.", "outcome")
	handshakes = desc("tls_handshakes_total", "TLS handshakes of hosts, by outcome.", "outcome")
	refused    = desc("connections_refused_total",
		"Connections and Connect commands that would have exceeded a limit, by transport.",
		"transport")
	refusals = desc("refusals_total",
		"Refusals of peers, and connections ended because of peers, by message.",
		"message")
	connectsRefused = desc("connects_refused_total",
		"Connect commands that were refused; the log says why.")
	listenerUp = desc("listener_up", "1 if hosts can connect at the address.", "transport",
		"address")
	auditLost = desc("audit_lost_records_total",
		"Records of the audit that could not be written to its file.")
	overShare = desc("connects_over_share_total",
		"Connect commands that were refused because of a share of a host or network, by transport.",
		"transport")
	outOfTurn = desc("connections_out_of_turn_total",
		"Connections refused to networks that have failed, while others waited, by transport.",
		"transport")
	evicted = desc("connections_evicted_total",
		"Connections that ended because newer ones took their place, by transport.", "transport")
	queueMemory = desc("queue_memory_bytes", "Memory that is counted for queues, by transport.",
		"transport")
	queueLimit = desc("queue_memory_limit_bytes", "The configured limit of queue_memory_bytes.",
		"transport")
	quarantined = desc("quarantined_queues_total",
		"Queues that could not be destroyed; their memory is kept, by transport.", "transport")
	reactorMemory   = desc("reactor_memory_bytes", "Data memory of a reactor.", "reactor")
	reactorUsed     = desc("reactor_memory_used_bytes", "Data memory that is in use.", "reactor")
	reactorOrphaned = desc("reactor_memory_orphaned_bytes",
		"Data memory that storage may still use although its commands were given up.", "reactor")
	reactorWaiters = desc("reactor_memory_waiting_commands", "Commands that wait for data memory.",
		"reactor")
	controllers = desc("controllers",
		"Controllers, which is hosts times paths, by subsystem and transport.", "subsystem",
		"transport")
	queues = desc("controller_queues", "Queues of these controllers, admin queues included.",
		"subsystem", "transport")
	hostWaits = desc("host_limit_waits_total",
		"Commands that have waited at limits of the host.", "host")
	hostWaited = desc("host_limit_wait_seconds_total",
		"How long these commands have waited, in all.", "host")
	subsystemWaits = desc("subsystem_limit_waits_total",
		"Commands that have waited at limits of the subsystem.", "subsystem")
	subsystemWaited = desc("subsystem_limit_wait_seconds_total",
		"How long these commands have waited, in all.", "subsystem")

	info = ofNamespace("namespace_info",
		"1, labelled with the backend of the namespace and the path of its storage.", "backend",
		"path")
	commands = ofNamespace("namespace_commands_total",
		"Operations of the storage that succeeded, by kind; each range of a Dataset Management "+
			"is a discard. Those that failed are in namespace_errors_total.", "op")
	moved  = ofNamespace("namespace_bytes_total", "Bytes that reads and writes moved.", "op")
	failed = ofNamespace("namespace_errors_total",
		"Operations of the storage that failed, by reason.", "reason")
	busy = ofNamespace("namespace_busy_seconds_total",
		"Time with I/O outstanding, summed over reactors.")
	size      = ofNamespace("namespace_size_bytes", "Size of the namespace.")
	blockSize = ofNamespace("namespace_block_size_bytes", "Size of a logical block.")
	allocated = ofNamespace("namespace_allocated_bytes",
		"Space that the content of a sparse file takes; measured every minute.")
	free = ofNamespace("namespace_free_bytes",
		"Space that is left on the file system of a sparse file; measured every minute.")
	ready    = ofNamespace("namespace_ready", "0 while the storage is offline or does not answer.")
	degraded = ofNamespace("namespace_degraded",
		"1 if accepted writes may be lost; nothing more is written.")
	protected = ofNamespace("namespace_write_protected",
		"1 if writes are refused: by the configuration, by the device, or because it is degraded.")
	cache = ofNamespace("namespace_volatile_cache",
		"1 if completed writes may be lost with the power until a flush.")
	waits = ofNamespace("namespace_limit_waits_total",
		"Commands that have waited at limits of the namespace.")
	waited = ofNamespace("namespace_limit_wait_seconds_total",
		"How long these commands have waited, in all.")
	givenUp = ofNamespace("namespace_commands_given_up_total",
		"Commands that took longer than io_timeout.")
	orphans = ofNamespace("namespace_orphans",
		"Operations of such commands that the storage still has.")
	returns = ofNamespace("namespace_returns_total",
		"How often storage that was offline or did not answer came back.")
	drive = ofNamespace("namespace_drive_info",
		"1, labelled with the drive that holds the namespace.", "drive")
	answered = ofNamespace("namespace_drive_answered_timestamp_seconds",
		"When the drive last reported its health, in Unix time; it is asked every minute.")
	warning = ofNamespace("health_critical_warning",
		"The bits of the critical warning of log 02h.", "warning")
	temperature = ofNamespace("health_temperature_celsius", "Temperature of the drive.")
	spare       = ofNamespace("health_available_spare_ratio", "Spare that is left.")
	threshold   = ofNamespace("health_available_spare_threshold_ratio",
		"Spare below which the drive warns.")
	used         = ofNamespace("health_used_ratio", "Endurance that is used up; it may exceed 1.")
	mediaErrors  = ofNamespace("health_media_errors_total", "Media and data integrity errors.")
	errorEntries = ofNamespace("health_error_log_entries_total",
		"Entries of the drive's error log over its life.")
	powerOn = ofNamespace("health_power_on_seconds_total",
		"Time under power; drives count it in hours.")
	unsafeOff = ofNamespace("health_unsafe_shutdowns_total", "Losses of power without notice.")
)

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
	s.gauge(buildInfo, 1, text(c.src.Version), runtime.Version())
	s.gauge(pending, float64(c.src.Pending()))
	var completed, broken uint64
	for name, usage := range c.src.Transports {
		u := usage()
		completed, broken = completed+u.Handshakes, broken+u.FailedHandshakes
		s.gauge(connections, float64(u.Connections), name)
		s.gauge(unassociated, float64(u.Unassociated), name)
		s.gauge(discovery, float64(u.Discovery), name)
		s.counter(refused, float64(u.Refused), name)
		s.counter(evicted, float64(u.Evicted), name)
		s.counter(overShare, float64(u.OverShare), name)
		s.counter(outOfTurn, float64(u.OutOfTurn), name)
		s.gauge(queueMemory, float64(u.Memory), name)
		s.gauge(queueLimit, float64(u.MemoryLimit), name)
		s.counter(quarantined, float64(u.Quarantined), name)
	}
	outcomes(s, handshakes, completed, broken)
	succeeded, failed := c.src.Authentications()
	outcomes(s, authentications, succeeded, failed)
	s.counter(auditLost, float64(c.src.AuditLost()))
	messages := c.src.Kinds()
	for message, n := range messages {
		s.counter(refusals, float64(n), message)
	}
	s.counter(connectsRefused, float64(messages["connect refused"]))
	for _, l := range c.src.Listeners() {
		s.gauge(listenerUp, boolean(l.State == "up"), l.Transport, l.Address)
	}
	c.reactors(s)
	c.paths(s)
	c.controllers(s)
	for _, l := range c.src.Limits() {
		limits(s, &l)
	}
	c.latencies(s)
	for _, ns := range c.src.Namespaces() {
		s := s.of(ns.Subsystem, strconv.FormatUint(uint64(ns.NSID), 10))
		s.gauge(info, 1, ns.Backend, text(ns.Path))
		if ns.State != "pending" {
			namespace(s, &ns)
		}
	}
}

func outcomes(s sink, d *prometheus.Desc, succeeded, failed uint64) {
	s.counter(d, float64(succeeded), "succeeded")
	s.counter(d, float64(failed), "failed")
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
		s.gauge(controllers, float64(n.controllers), k.sub, k.transport)
		s.gauge(queues, float64(n.queues), k.sub, k.transport)
	}
}

// limits exports the waits at the limits of an object. Hosts with limits are configured ones.
func limits(s sink, l *qos.Info) {
	n, t, labels := hostWaits, hostWaited, []string{l.HostNQN}
	switch {
	case l.NSID != 0:
		n, t = waits, waited
		labels = []string{l.SubNQN, strconv.FormatUint(uint64(l.NSID), 10)}
	case l.SubNQN != "":
		n, t, labels = subsystemWaits, subsystemWaited, []string{l.SubNQN}
	}
	s.counter(n, float64(l.Waits), labels...)
	s.counter(t, l.WaitSeconds, labels...)
}

func namespace(s sink, ns *observed.Namespace) {
	s.counter(commands, float64(ns.Reads), "read")
	s.counter(commands, float64(ns.Writes), "write")
	s.counter(commands, float64(ns.Flushes), "flush")
	s.counter(commands, float64(ns.WriteZeroes), "write_zeroes")
	s.counter(commands, float64(ns.Discards), "discard")
	s.counter(moved, float64(ns.ReadBytes), "read")
	s.counter(moved, float64(ns.WrittenBytes), "write")
	for reason, n := range ns.Errors {
		s.counter(failed, float64(n), reason)
	}
	s.counter(busy, ns.BusySeconds)
	s.gauge(size, float64(ns.SizeBytes))
	s.gauge(blockSize, float64(ns.BlockSizeBytes))
	if ns.Allocated >= 0 {
		s.gauge(allocated, float64(ns.Allocated))
	}
	if ns.Free >= 0 {
		s.gauge(free, float64(ns.Free))
	}
	if ns.State != "standby" {
		s.gauge(ready, boolean(ns.Ready))
	}
	s.gauge(degraded, boolean(ns.Degraded))
	s.gauge(protected, boolean(ns.WriteProtected))
	s.gauge(cache, boolean(ns.VolatileCache))
	s.counter(givenUp, float64(ns.Timeouts))
	s.gauge(orphans, float64(ns.Orphans))
	s.counter(returns, float64(ns.Returns))
	health(s, ns.Health, ns.Drive)
}

// health exports log 02h as far as it is known: little without a drive, or before its answer.
func health(s sink, l *nvme.SMARTLog, d *observed.Drive) {
	for _, w := range warnings {
		s.gauge(warning, boolean(l.CriticalWarning&w.bits != 0), w.name)
	}
	if d == nil {
		s.counter(mediaErrors, number(l.MediaErrors))
		return
	}
	s.gauge(drive, 1, text(d.ID))
	if d.Answered.IsZero() {
		return
	}
	s.gauge(answered, float64(d.Answered.UnixMilli())/1e3)
	if l.Temperature != 0 {
		s.gauge(temperature, float64(l.Temperature)-273)
	}
	if hours := number(l.PowerOnHours); d.Counts || hours != 0 {
		s.counter(powerOn, hours*time.Hour.Seconds())
	}
	// Not before the first answer of the drive: its lifetime counters are no increase.
	s.counter(mediaErrors, number(l.MediaErrors))
	if !d.Counts { // it does not report the rest either
		return
	}
	s.gauge(spare, float64(l.AvailableSpare)/100)
	s.gauge(threshold, float64(l.SpareThreshold)/100)
	s.gauge(used, float64(l.PercentageUsed)/100)
	s.counter(errorEntries, number(l.ErrorLogEntries))
	s.counter(unsafeOff, number(l.UnsafeShutdowns))
}
