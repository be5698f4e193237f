package config

import (
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// Log selects the lines to log and their format.
type Log struct {
	Level slog.Level
	JSON  bool
	// SlowIO is the latency from which a command is logged; 0 means never.
	SlowIO time.Duration
}

// levels are the levels of log lines.
var levels = []lang.Choice[slog.Level]{
	{Word: "debug", Meaning: slog.LevelDebug},
	{Word: "info", Meaning: slog.LevelInfo},
	{Word: "warn", Meaning: slog.LevelWarn},
	{Word: "error", Meaning: slog.LevelError},
}

func (l *Log) keys() []lang.Key {
	return []lang.Key{
		lang.NewKey("level", lang.Choose(&l.Level, levels...),
			"The least severe lines that are logged. Set it to "+
				"`debug` to find out why a host does not connect."),
		lang.NewKey("format", lang.Either(&l.JSON, "text", "json"),
			"Form of the lines. Set it to `json` when a program reads the log.").
			NeedsRestart(),
		lang.NewKey("slow_io", lang.Duration(&l.SlowIO, 0, time.Hour),
			"Commands for namespaces that take this long or longer are logged with the time in "+
				"each stage. At most ten from one address are logged in ten seconds; with `0s`, "+
				"none are. Set it to find out where single commands wait."),
	}
}

// Reactors sizes the polling loops that serve all I/O.
type Reactors struct {
	// Count is the number of reactors; 0: one for each of CPUs, or for every second processor.
	Count int
	// CPUs pins reactor i to CPUs[i]. If empty, the scheduler places them.
	CPUs []int
	// Memory is the data memory of each reactor, in bytes.
	Memory int
	// Spin is the longest time for which an idle reactor polls before it sleeps. A negative value
	// leaves it to the reactors; see reactor.DefaultSpin.
	Spin time.Duration
}

func (r *Reactors) keys() []lang.Key {
	r.Memory, r.Spin = 64<<20, -1
	return []lang.Key{
		lang.NewKey("count", lang.Int(&r.Count, 0, 256),
			"Number of reactors. Set it higher when the machine does nothing else, lower when "+
				"others need its CPUs.").Without("one for each of `cpus`, else half of the CPUs"),
		lang.NewKey("cpus", lang.Sequence(&r.CPUs, 0, 256, func(cpu *int) lang.Value {
			return lang.Unique(lang.Int(cpu, 0, 4095), "Each reactor needs a CPU of its own.")
		}),
			"The CPU of each reactor. Set it when CPUs are reserved for the target, or to keep "+
				"reactors on the NUMA node of the network adapter.").
			Without("the scheduler places them"),
		lang.NewKey("memory", lang.Bytes(&r.Memory, 8<<20, 64<<30, lang.AnySize),
			"Data memory of each reactor. Transfers that do not fit wait. Set it when many "+
				"hosts have large transfers outstanding, or when memory is scarce."),
		lang.NewKey("spin", lang.Duration(&r.Spin, 0, 100*time.Millisecond),
			"The longest time that a reactor polls without finding work before it sleeps. A "+
				"reactor polls for less time where that does not pay. Set it to `0s` to save "+
				"CPU time at the price of latency after a pause, or higher for the opposite.").
			Without("200us to 1ms, measured"),
	}
}

// queueDepth is a key of both transports.
func queueDepth(depth *int, limit int) lang.Key {
	return lang.NewKey("queue_depth", lang.Int(depth, subsystems.MinQueueSize, limit),
		"The largest number of commands on one queue. Set it higher when hosts ask for deeper "+
			"queues (`nvme connect --queue-size`), lower to limit the outstanding commands of a "+
			"host.")
}

// connectionLimits are keys of both transports.
func connectionLimits(all, perHost *int, limit int) []lang.Key {
	return []lang.Key{
		lang.NewKey("max_connections", lang.Int(all, 1, limit),
			"The largest number of connections (queues). Peers that are not known to be allowed "+
				"hosts share a part of it, and no host can take all of the rest (see Tuning, "+
				"shares of connections). Set it higher when all hosts together have more queues "+
				"than seven eighths of it, lower to protect a small machine."),
		lang.NewKey("max_connections_per_host", lang.Int(perHost, 1, limit),
			"The largest number of connections of a host that has authenticated or uses TLS, "+
				"and of all other hosts at one address or IPv6 /64 together. Peers without a "+
				"successful Connect are counted separately. Set it higher when many such hosts "+
				"share an address (NAT, containers) or a /64, lower to keep one host from "+
				"taking many connections."),
	}
}

func tcpKeys(c *tcp.Config) []lang.Key {
	return append([]lang.Key{
		queueDepth(&c.MaxDepth, tcp.MaxQueueDepth),
		lang.NewKey("in_capsule_size", lang.Bytes(&c.InCapsuleSize, tcp.MinInCapsuleSize,
			tcp.MaxInCapsuleSize, tcp.InCapsuleUnit),
			"The most data that a write may carry in its command. Larger writes wait one "+
				"round trip for an R2T. Set it lower when large writes crowd out small ones on a "+
				"slow link.").NeedsRestart(),
		lang.NewKey("queue_memory",
			lang.Bytes(&c.Memory, tcp.MinQueueMemory, lang.NoLimit, lang.AnySize),
			"Memory of all queues, without data: 16 KiB for each queue and 864 bytes for each "+
				"command of its depth. The default is enough for 8,400 queues of depth 128. Set "+
				"it when the log reports that it is too small for a queue."),
		lang.NewKey("congestion_control", lang.Text(&c.CongestionControl),
			"Congestion control of the connections, one of `sysctl "+
				"net.ipv4.tcp_available_congestion_control`. `bbr` paces packets, which slows "+
				"fast networks. Set it when the storage network needs another algorithm than "+
				"the rest of the machine, for instance `dctcp`.").Without("the system's").
			NeedsRestart(),
		lang.NewKey("header_digest", lang.Not(&c.NoHeaderDigest),
			"Whether hosts may enable the CRC32C of headers. Set it to `false` when hosts ask "+
				"for it but it is not worth the CPU time."),
		lang.NewKey("data_digest", lang.Not(&c.NoDataDigest),
			"The same for data, which costs more CPU time."),
	}, connectionLimits(&c.Connections, &c.PerHost, tcp.ConnectionsLimit)...)
}

func rdmaKeys(c *rdma.Config) []lang.Key {
	return append([]lang.Key{
		queueDepth(&c.MaxDepth, rdma.DepthLimit),
		lang.NewKey("in_capsule_size",
			lang.Bytes(&c.InCapsuleSize, 0, rdma.InCapsuleLimit, rdma.InCapsuleUnit),
			"The most data that a write may carry in its command; 0 is none. Set it higher when "+
				"writes of more than 4 KiB are common and no host runs Linux 5.4 to 5.12, which "+
				"corrupt such writes.").NeedsRestart(),
		lang.NewKey("queue_memory",
			lang.Bytes(&c.Memory, rdma.MinQueueMemory, lang.NoLimit, lang.AnySize),
			"Registered memory of all queues: for each queue, its depth times (in-capsule size "+
				"+ 80 bytes). The default is enough for 1,900 queues of depth 128. Set it when "+
				"the log reports that it is too small for a queue."),
		lang.NewKey("srq_size", lang.Int(&c.SRQSize, 0, rdma.SRQSizeLimit),
			"Size of the shared receive queue of each reactor and device, rounded up to 128. "+
				"All queues receive commands from it, instead of from their own receives, "+
				"except over iWARP. Commands wait when hosts send more at once. Set it when "+
				"many deep queues would need too much memory.").
			Without("0, no shared receive queue").NeedsRestart(),
	}, connectionLimits(&c.Connections, &c.PerHost, rdma.QueuesLimit)...)
}

func diskKeys(e *disk.Engine) []lang.Key {
	e.Name = disk.Auto
	return []lang.Key{
		lang.NewKey("engine", lang.OneOf(&e.Name, disk.Auto, disk.IOUring, disk.Threads),
			"The way to make system calls. `threads` cost more CPU; `auto` uses them, with a "+
				"warning, only where io_uring is forbidden. Files on FUSE always use threads. Set "+
				"it to `io_uring` when the target should fail to start rather than run slower."),
	}
}
