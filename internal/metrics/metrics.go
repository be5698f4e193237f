// Package metrics exports snapshots of a running target to Prometheus, taken at each scrape.
// Nothing here runs on a reactor, and no scrape waits for a drive.
package metrics

import (
	"context"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
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
	Kinds func() map[*event.Kind]uint64
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

// Host has the activity of one host on all its paths. Its counters never decrease.
type Host struct {
	// NQN is the NQN of a host named in the configuration; "" stands for all others.
	NQN         string
	Controllers int
	// Commands is the number of commands received on I/O queues, and NearlyFull the number of them
	// that found at least three quarters of their queue in use.
	Commands, NearlyFull uint64
	// Retransmits is the number of packets sent again over TCP, RTTSeconds the longest round-trip
	// time of a connection, 0 if there is none.
	Retransmits uint64
	RTTSeconds  float64
	// Margin is the smallest recently remaining part of a keep-alive timeout, 0 to 1. It is
	// negative if no controller has such a timeout.
	Margin float64
}

// Kind is a property of connections: the name of the transport and subsystems.SecurityOf.
type Kind struct {
	Transport string
	Security  subsystems.Security
}

// Secured counts connections by kind. Missing kinds are 0.
type Secured map[Kind]int

// Expiry is the end of something that clients or hosts need.
type Expiry struct {
	Name string
	At   time.Time
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
	s.gauge("namespaces_pending", "Configured namespaces with missing storage.", c.src.Pending())
	var completed, broken uint64
	for name, usage := range c.src.Transports {
		u, s := usage(), s.with("transport", name)
		completed, broken = completed+u.Handshakes, broken+u.FailedHandshakes
		s.gauge("connections", "Connections (queues) that are open, by transport.", u.Connections)
		s.gauge("connections_unassociated",
			"Connections without a successful Connect command, or with a host that has yet to "+
				"authenticate, by transport.", u.Unassociated)
		s.gauge("connections_discovery", "Connections of discovery controllers, by transport.",
			u.Discovery)
		s.counter("connections_refused_total",
			"Connections and Connect commands that would have exceeded a limit, by transport.",
			u.Refused)
		s.counter("connections_evicted_total",
			"Connections that ended because newer ones took their place, by transport.", u.Evicted)
		s.counter("connects_over_share_total",
			"Connect commands that were refused because of a share of a host or network, by "+
				"transport.", u.OverShare)
		s.counter("connections_out_of_turn_total",
			"Connections refused to networks that have failed, while others waited, by transport.",
			u.OutOfTurn)
		s.gauge("queue_memory_bytes", "Memory that is counted for queues, by transport.", u.Memory)
		s.gauge("queue_memory_limit_bytes", "The configured limit of queue_memory_bytes.",
			u.MemoryLimit)
		s.counter("quarantined_queues_total",
			"Queues that could not be destroyed; their memory is kept, by transport.",
			u.Quarantined)
	}
	each(s, "tls_handshakes_total", "TLS handshakes of hosts, by outcome.", "outcome",
		map[string]uint64{"succeeded": completed, "failed": broken})
	succeeded, failed := c.src.Authentications()
	each(s, "authentications_total", "Authentications of queues by DH-HMAC-CHAP, by outcome.",
		"outcome", map[string]uint64{"succeeded": succeeded, "failed": failed})
	s.counter("audit_lost_records_total",
		"Records of the audit that could not be written to its file.", c.src.AuditLost())
	for kind, n := range c.src.Kinds() {
		s.counter("refusals_total",
			"Refusals of peers, and connections ended because of peers, by message.",
			n, "message", kind.Message)
	}
	for _, l := range c.src.Listeners() {
		s.gauge("listener_up", "1 if hosts can connect at the address.",
			l.State == "up", "transport", l.Transport, "address", l.Address)
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

// controllers counts controllers and queues. NQNs are not labels, since hosts choose them.
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
			n.controllers, "subsystem", k.sub, "transport", k.transport)
		s.gauge("controller_queues", "Queues of these controllers, admin queues included.",
			n.queues, "subsystem", k.sub, "transport", k.transport)
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
		l.Waits)
	s.counter(of+"_limit_wait_seconds_total", "How long these commands have waited, in all.",
		l.WaitSeconds)
}

func groups(s sink, g *observed.Group) {
	s = s.with("cluster", text(g.Cluster), "pool", text(g.Pool), "ana_group",
		strconv.Itoa(int(g.ANAGroup)))
	s.gauge("group_differences",
		"Settings of this gateway for the ANA group that conflict with those of others.",
		len(g.Differences))
	s.gauge("group_serving", "1 if this gateway serves the ANA group, which it shares with others.",
		g.State == "serving")
	s.gauge("group_hosts", "1 if hosts that use the ANA group are connected to this gateway.",
		g.Hosts)
	s.gauge("group_fences",
		"Former holders of the ANA group that are fenced and have not come back.", len(g.Fenced))
	if g.CheckSeconds > 0 {
		s.gauge("group_fence_check_age_seconds",
			"Time since these fences were checked, at the gateway that serves the group.",
			g.CheckSeconds)
	}
}

func namespace(s sink, ns *observed.Namespace) {
	each(s, "namespace_commands_total",
		"Operations of the storage that succeeded, by kind; each range of a Dataset "+
			"Management is a discard. Failed ones are in namespace_errors_total.",
		"op", map[string]uint64{
			"read": ns.Reads, "write": ns.Writes, "flush": ns.Flushes,
			"write_zeroes": ns.WriteZeroes, "discard": ns.Discards,
		})
	each(s, "namespace_bytes_total", "Bytes that reads and writes moved.", "op",
		map[string]uint64{"read": ns.ReadBytes, "write": ns.WrittenBytes})
	each(s, "namespace_errors_total", "Operations of the storage that failed, by reason.", "reason",
		ns.Errors)
	s.counter("namespace_busy_seconds_total", "Time with I/O outstanding, summed over reactors.",
		ns.BusySeconds)
	s.gauge("namespace_size_bytes", "Size of the namespace.", ns.SizeBytes)
	s.gauge("namespace_block_size_bytes", "Size of a logical block.", ns.BlockSizeBytes)
	if ns.Allocated >= 0 {
		s.gauge("namespace_allocated_bytes",
			"Space that the content of a sparse file takes; measured every minute.", ns.Allocated)
	}
	if ns.Free >= 0 {
		s.gauge("namespace_free_bytes",
			"Space that is left on the file system of a sparse file; measured every minute.",
			ns.Free)
	}
	if ns.State != "standby" {
		s.gauge("namespace_ready", "0 while the storage is offline or does not answer.", ns.Ready)
	}
	s.gauge("namespace_degraded", "1 if accepted writes may be lost; nothing more is written.",
		ns.Degraded)
	s.gauge("namespace_write_protected",
		"1 if writes are refused: by the configuration, by the device, or because it is degraded.",
		ns.WriteProtected)
	s.gauge("namespace_volatile_cache",
		"1 if completed writes may be lost with the power until a flush.", ns.VolatileCache)
	s.counter("namespace_commands_given_up_total", "Commands that took longer than io_timeout.",
		ns.Timeouts)
	s.gauge("namespace_orphans", "Operations of such commands that the storage still has.",
		ns.Orphans)
	s.counter("namespace_returns_total",
		"How often storage that was offline or did not answer came back.", ns.Returns)
	health(s, ns.Health, ns.Drive)
}

// health exports log 02h as far as it is known: little without a drive, or before its answer.
func health(s sink, l *nvme.SMARTLog, d *observed.Drive) {
	for _, w := range warnings {
		s.gauge("health_critical_warning", "The bits of the critical warning of log 02h.",
			l.CriticalWarning&w.bits != 0, "warning", w.name)
	}
	if d == nil {
		s.counter("health_media_errors_total", "Media and data integrity errors.", l.MediaErrors)
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
	if hours := value(l.PowerOnHours); d.Counts || hours != 0 {
		s.counter("health_power_on_seconds_total", "Time under power; drives count it in hours.",
			hours*time.Hour.Seconds())
	}
	// Not before the first answer of the drive: its lifetime counters are no increase.
	s.counter("health_media_errors_total", "Media and data integrity errors.", l.MediaErrors)
	if !d.Counts { // it does not report the rest either
		return
	}
	s.gauge("health_available_spare_ratio", "Spare that is left.", float64(l.AvailableSpare)/100)
	s.gauge("health_available_spare_threshold_ratio", "Spare below which the drive warns.",
		float64(l.SpareThreshold)/100)
	s.gauge("health_used_ratio", "Endurance that is used up; it may exceed 1.",
		float64(l.PercentageUsed)/100)
	s.counter("health_error_log_entries_total", "Entries of the drive's error log over its life.",
		l.ErrorLogEntries)
	s.counter("health_unsafe_shutdowns_total", "Losses of power without notice.", l.UnsafeShutdowns)
}

// paths exports metrics of the paths between the target and its hosts.
func (c collector) paths(s sink) {
	hosts, secured := c.src.Paths()
	for name := range c.src.Transports {
		for r := range subsystems.SecurityAuth | subsystems.SecurityTLS + 1 {
			if secured != nil {
				s.gauge("connections_by_security",
					"Connections by security: none, auth, tls, or auth+tls.",
					secured[Kind{name, r}], "transport", name, "security", r.String())
			}
		}
	}
	for _, h := range hosts {
		if h.NQN != "" {
			s.gauge("host_controllers",
				"Controllers of a host that the configuration names; 0: it has no path.",
				h.Controllers, "host", h.NQN)
		}
		s := s.with("host", h.NQN)
		s.counter("host_commands_total", "Commands that were received on I/O queues.", h.Commands)
		s.counter("host_nearly_full_commands_total",
			"Commands that found at least three quarters of their I/O queue in use.", h.NearlyFull)
		s.counter("host_tcp_retransmits_total",
			"Packets that the target has sent again to the host.", h.Retransmits)
		if h.RTTSeconds > 0 {
			s.gauge("host_tcp_rtt_seconds",
				"The longest smoothed round-trip time of a connection of the host.", h.RTTSeconds)
		}
		if h.Margin >= 0 {
			s.gauge("host_keep_alive_margin_ratio",
				"The smallest part of the keep-alive timeout that was left in the last one or two "+
					"minutes.", h.Margin)
		}
	}
	for _, d := range c.src.Devices() {
		s := s.with("device", d.Name)
		s.gauge("rdma_queue_pairs", "Queue pairs of the target on an RDMA device.", d.QueuePairs)
		s.gauge("rdma_completion_queues", "Completion queues of the target.", d.CompletionQueues)
		s.gauge("rdma_memory_regions", "Memory regions of the target.", d.MemoryRegions)
		limit := func(of, what string, n int64) {
			if n > 0 {
				s.gauge("rdma_"+of+"_limit", what+" for all programs.", n)
			}
		}
		limit("queue_pairs", "Queue pairs that an RDMA device has", d.MaxQueuePairs)
		limit("completion_queues", "Completion queues that it has", d.MaxCompletionQueues)
		limit("memory_regions", "Memory regions that it has", d.MaxMemoryRegions)
	}
	for _, p := range c.src.PortCounters() {
		s.counter("rdma_port_statistic_total",
			"A counter of the port in /sys/class/infiniband, of all that use it.", p.Value,
			"device", text(p.Device), "port", text(p.Port), "counter", text(p.Counter))
	}
	s.gauge("state_unsaved", "1 if the state directory could not be written the last time.",
		c.src.Unsaved())
	for _, e := range c.src.Expiries() {
		s.gauge("expiry_timestamp_seconds",
			"When a certificate or keys of hosts end, in Unix time.", e.At.Unix(), "of", e.Name)
	}
}

// reactors exports nothing if a reactor does not answer.
func (c collector) reactors(s sink) {
	ctx, cancel := context.WithTimeout(context.Background(), c.src.Patience)
	defer cancel()
	list, _ := c.src.Reactors(ctx)
	for i, r := range list {
		s := s.with("reactor", strconv.Itoa(i))
		s.gauge("reactor_memory_bytes", "Data memory of a reactor.", r.MemoryBytes)
		s.gauge("reactor_memory_used_bytes", "Data memory that is in use.", r.MemoryUsedBytes)
		s.gauge("reactor_memory_orphaned_bytes",
			"Data memory that storage may still use although its commands were given up.",
			r.OrphanedBytes)
		s.gauge("reactor_memory_waiting_commands", "Commands that wait for data memory.",
			r.WaitingCommands)
		each(s, "reactor_seconds_total",
			"Time of a reactor: busy, polling without finding work, or asleep.", "state",
			map[string]float64{
				"busy": r.BusySeconds, "polling": r.PollingSeconds, "asleep": r.AsleepSeconds,
			})
		s.counter("reactor_polls_total", "How often a reactor looked for work.", r.Polls)
		s.counter("reactor_empty_polls_total", "How often it found none.", r.EmptyPolls)
		each(s, "reactor_steps_total",
			"Steps of work that a reactor did, by transport, or for storage.", "poller", r.Steps)
	}
}

// latencies exports the histograms of namespaces, over all hosts, because hosts choose their NQNs.
func (c collector) latencies(s sink) {
	type key struct {
		sub  string
		nsid uint32
		op   observe.Operation
	}
	sums := map[key]*observe.Latency{}
	for _, i := range c.src.Latencies() {
		k := key{i.SubNQN, i.NSID, i.Operation}
		if sums[k] == nil {
			sums[k] = new(observe.Latency)
		}
		sums[k].Merge(i.Latency)
	}
	for k, l := range sums {
		s := s.ofNamespace(k.sub, k.nsid, "op", k.op.String())
		s.histogram("namespace_latency_seconds",
			"Time from the arrival of a command until its response has left, by operation.",
			true, &l.Total)
		for i := range l.Stages {
			s.histogram("namespace_stage_latency_seconds",
				"The part of this time that was spent in a stage.", false, &l.Stages[i],
				"stage", fabric.Stage(i).String())
		}
	}
}
