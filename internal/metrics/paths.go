package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
	"github.com/prometheus/client_golang/prometheus"
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

var (
	hostControllers = desc("host_controllers",
		"Controllers of a host that the configuration names; 0: it has no path.", "host")
	hostCommands = desc("host_commands_total", "Commands that were received on I/O queues.", "host")
	hostFull     = desc("host_nearly_full_commands_total",
		"Commands that found at least three quarters of their I/O queue in use.", "host")
	hostRetransmits = desc("host_tcp_retransmits_total",
		"Packets that the target has sent again to the host.", "host")
	hostRTT = desc("host_tcp_rtt_seconds",
		"The longest smoothed round-trip time of a connection of the host.", "host")
	hostMargin = desc("host_keep_alive_margin_ratio",
		"The smallest part of the keep-alive timeout that was left in the last one or two minutes.",
		"host")

	reactorTime = desc("reactor_seconds_total",
		"Time of a reactor: busy, polling without finding work, or asleep.", "reactor", "state")
	reactorPolls = desc("reactor_polls_total", "How often a reactor looked for work.", "reactor")
	reactorEmpty = desc("reactor_empty_polls_total", "How often it found none.", "reactor")
	reactorSteps = desc("reactor_steps_total",
		"Steps of work that a reactor did, by transport, or for storage.", "reactor", "poller")

	deviceQPs = desc("rdma_queue_pairs", "Queue pairs of the target on an RDMA device.",
		"device")
	deviceCQs    = desc("rdma_completion_queues", "Completion queues of the target.", "device")
	deviceMRs    = desc("rdma_memory_regions", "Memory regions of the target.", "device")
	deviceMaxQPs = desc("rdma_queue_pairs_limit",
		"Queue pairs that an RDMA device has for all programs.", "device")
	deviceMaxCQs = desc("rdma_completion_queues_limit",
		"Completion queues that it has for all programs.", "device")
	deviceMaxMRs = desc("rdma_memory_regions_limit",
		"Memory regions that it has for all programs.", "device")
	portCount = desc("rdma_port_statistic_total",
		"A counter of the port in /sys/class/infiniband, of all that use it.", "device", "port",
		"counter")

	unsaved = desc("state_unsaved",
		"1 if the state directory could not be written the last time.")
	expiry = desc("expiry_timestamp_seconds",
		"When a certificate or keys of hosts end, in Unix time.", "of")
)

// paths exports metrics of the paths between the target and its hosts.
func (c collector) paths(s sink) {
	hosts, secured := c.src.Paths()
	for name := range c.src.Transports {
		for r := range subsystems.SecurityAuth | subsystems.SecurityTLS + 1 {
			if secured != nil {
				s.gauge(bySecurity, float64(secured[Kind{name, r}]), name, r.String())
			}
		}
	}
	for _, h := range hosts {
		if h.NQN != "" {
			s.gauge(hostControllers, float64(h.Controllers), h.NQN)
		}
		s.counter(hostCommands, float64(h.Commands), h.NQN)
		s.counter(hostFull, float64(h.NearlyFull), h.NQN)
		s.counter(hostRetransmits, float64(h.Retransmits), h.NQN)
		if h.RTTSeconds > 0 {
			s.gauge(hostRTT, h.RTTSeconds, h.NQN)
		}
		if h.Margin >= 0 {
			s.gauge(hostMargin, h.Margin, h.NQN)
		}
	}
	for _, d := range c.src.Devices() {
		s.gauge(deviceQPs, float64(d.QueuePairs), d.Name)
		s.gauge(deviceCQs, float64(d.CompletionQueues), d.Name)
		s.gauge(deviceMRs, float64(d.MemoryRegions), d.Name)
		for limit, n := range map[*prometheus.Desc]int64{
			deviceMaxQPs: d.MaxQueuePairs, deviceMaxCQs: d.MaxCompletionQueues,
			deviceMaxMRs: d.MaxMemoryRegions,
		} {
			if n > 0 {
				s.gauge(limit, float64(n), d.Name)
			}
		}
	}
	for _, p := range c.src.PortCounters() {
		s.counter(portCount, float64(p.Value), text(p.Device), text(p.Port), text(p.Counter))
	}
	s.gauge(unsaved, boolean(c.src.Unsaved()))
	for _, e := range c.src.Expiries() {
		s.gauge(expiry, float64(e.At.Unix()), e.Name)
	}
}

// reactors exports nothing if a reactor does not answer.
func (c collector) reactors(s sink) {
	ctx, cancel := context.WithTimeout(context.Background(), c.src.Patience)
	defer cancel()
	list, _ := c.src.Reactors(ctx)
	for i, r := range list {
		s := s.of(strconv.Itoa(i))
		s.gauge(reactorMemory, float64(r.MemoryBytes))
		s.gauge(reactorUsed, float64(r.MemoryUsedBytes))
		s.gauge(reactorOrphaned, float64(r.OrphanedBytes))
		s.gauge(reactorWaiters, float64(r.WaitingCommands))
		s.counter(reactorTime, r.BusySeconds, "busy")
		s.counter(reactorTime, r.PollingSeconds, "polling")
		s.counter(reactorTime, r.AsleepSeconds, "asleep")
		s.counter(reactorPolls, float64(r.Polls))
		s.counter(reactorEmpty, float64(r.EmptyPolls))
		for poller, n := range r.Steps {
			s.counter(reactorSteps, float64(n), poller)
		}
	}
}
