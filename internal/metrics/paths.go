package metrics

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

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

// paths exports metrics of the paths between the target and its hosts.
func (c collector) paths(s sink) {
	hosts, secured := c.src.Paths()
	for name := range c.src.Transports {
		for r := range subsystems.SecurityAuth | subsystems.SecurityTLS + 1 {
			if secured != nil {
				s.gauge("connections_by_security",
					"Connections by security: none, auth, tls, or auth+tls.",
					float64(secured[Kind{name, r}]), "transport", name, "security", r.String())
			}
		}
	}
	for _, h := range hosts {
		if h.NQN != "" {
			s.gauge("host_controllers",
				"Controllers of a host that the configuration names; 0: it has no path.",
				float64(h.Controllers), "host", h.NQN)
		}
		s := s.with("host", h.NQN)
		s.counter("host_commands_total", "Commands that were received on I/O queues.",
			float64(h.Commands))
		s.counter("host_nearly_full_commands_total",
			"Commands that found at least three quarters of their I/O queue in use.",
			float64(h.NearlyFull))
		s.counter("host_tcp_retransmits_total",
			"Packets that the target has sent again to the host.", float64(h.Retransmits))
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
		s.gauge("rdma_queue_pairs", "Queue pairs of the target on an RDMA device.",
			float64(d.QueuePairs))
		s.gauge("rdma_completion_queues", "Completion queues of the target.",
			float64(d.CompletionQueues))
		s.gauge("rdma_memory_regions", "Memory regions of the target.", float64(d.MemoryRegions))
		limit := func(of, what string, n int64) {
			if n > 0 {
				s.gauge("rdma_"+of+"_limit", what+" for all programs.", float64(n))
			}
		}
		limit("queue_pairs", "Queue pairs that an RDMA device has", d.MaxQueuePairs)
		limit("completion_queues", "Completion queues that it has", d.MaxCompletionQueues)
		limit("memory_regions", "Memory regions that it has", d.MaxMemoryRegions)
	}
	for _, p := range c.src.PortCounters() {
		s.counter("rdma_port_statistic_total",
			"A counter of the port in /sys/class/infiniband, of all that use it.",
			float64(p.Value), "device", text(p.Device), "port", text(p.Port),
			"counter", text(p.Counter))
	}
	s.gauge("state_unsaved", "1 if the state directory could not be written the last time.",
		boolean(c.src.Unsaved()))
	for _, e := range c.src.Expiries() {
		s.gauge("expiry_timestamp_seconds",
			"When a certificate or keys of hosts end, in Unix time.",
			float64(e.At.Unix()), "of", e.Name)
	}
}

// reactors exports nothing if a reactor does not answer.
func (c collector) reactors(s sink) {
	ctx, cancel := context.WithTimeout(context.Background(), c.src.Patience)
	defer cancel()
	list, _ := c.src.Reactors(ctx)
	for i, r := range list {
		s := s.with("reactor", strconv.Itoa(i))
		s.gauge("reactor_memory_bytes", "Data memory of a reactor.", float64(r.MemoryBytes))
		s.gauge("reactor_memory_used_bytes", "Data memory that is in use.",
			float64(r.MemoryUsedBytes))
		s.gauge("reactor_memory_orphaned_bytes",
			"Data memory that storage may still use although its commands were given up.",
			float64(r.OrphanedBytes))
		s.gauge("reactor_memory_waiting_commands", "Commands that wait for data memory.",
			float64(r.WaitingCommands))
		for state, seconds := range map[string]float64{
			"busy": r.BusySeconds, "polling": r.PollingSeconds, "asleep": r.AsleepSeconds,
		} {
			s.counter("reactor_seconds_total",
				"Time of a reactor: busy, polling without finding work, or asleep.",
				seconds, "state", state)
		}
		s.counter("reactor_polls_total", "How often a reactor looked for work.", float64(r.Polls))
		s.counter("reactor_empty_polls_total", "How often it found none.", float64(r.EmptyPolls))
		for poller, n := range r.Steps {
			s.counter("reactor_steps_total",
				"Steps of work that a reactor did, by transport, or for storage.",
				float64(n), "poller", poller)
		}
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

// The classic buckets end at every second power of two from 4 µs to 17 s.
const firstBound, lastBound = 12, 34

// nativeSchema makes native buckets 2^(1/8) wide.
const nativeSchema = 3

// histogram adds a classic and a native histogram; Prometheus chooses one. Without buckets the
// classic one is just a sum and a count, because series cost Prometheus memory.
func (s sink) histogram(name, help string, buckets bool, h *histogram.Histogram,
	labels ...string,
) {
	d, labels := s.describe(name, help, labels)
	bounds, native, zeros := map[float64]uint64{}, map[int]int64{}, uint64(0)
	first := firstBound
	if !buckets {
		first = lastBound + 1
	}
	for bit := first; bit <= lastBound; bit += 2 {
		bounds[float64(int64(1)<<bit)/1e9] = 0
	}
	for middle, n := range h.All() {
		if middle == 0 {
			zeros += n
		} else {
			native[int(math.Ceil(math.Log2(float64(middle)/1e9)*(1<<nativeSchema)))] += int64(n)
		}
		for bit := lastBound; bit >= first && middle < 1<<bit; bit -= 2 {
			bounds[float64(int64(1)<<bit)/1e9] += n
		}
	}
	count, sum := h.Count(), float64(h.Sum())/1e9
	m, err := prometheus.NewConstNativeHistogram(d, count, sum, native, nil, zeros, nativeSchema,
		1e-9, time.Time{}, labels...)
	if err != nil {
		panic(err) // becomes an error of the scrape
	}
	s.out <- both{prometheus.MustNewConstHistogram(d, count, sum, bounds, labels...), m}
}

// both is a classic histogram and a native one.
type both struct {
	prometheus.Metric
	native prometheus.Metric
}

func (b both) Write(out *dto.Metric) error {
	var classic dto.Metric
	if err := b.Metric.Write(&classic); err != nil {
		return err
	}
	if err := b.native.Write(out); err != nil {
		return err
	}
	out.Histogram.Bucket = classic.Histogram.Bucket
	out.Histogram.CreatedTimestamp = nil
	return nil
}
