package config

import (
	"log/slog"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// Key is one key of a mapping. As with a flag, what the variable behind Value holds before the file
// is read is the default.
type Key struct {
	Name  string
	Value Value
	// Required is the hint of the error if the key is missing; "": it may be left out.
	Required string
	// Default says in the documentation what happens without the key, where the variable does not.
	Default string
	// Doc is what the key means and when to set it.
	Doc string
}

const gib = 1 << 30

// keys is the schema of the file. It sets the defaults.
func (c *Config) keys() []Key {
	c.TCP.SetDefaults()
	c.RDMA.SetDefaults()
	c.ShutdownTimeout = 10 * time.Second
	return []Key{
		{Name: "log", Value: Mapping(c.Log.keys()), Doc: "What is written to stderr."},
		{
			Name: "reactors", Value: Mapping(c.Reactors.keys()),
			Doc: "The polling threads that serve all I/O.",
		},
		{Name: "tcp", Value: Mapping(tcpKeys(&c.TCP)), Doc: "The TCP transport."},
		{Name: "rdma", Value: Mapping(rdmaKeys(&c.RDMA)), Doc: "The RDMA transport."},
		{
			Name: "disks", Value: Mapping(diskKeys(&c.Disks)),
			Doc: "How files and disks are read and written.",
		},
		{Name: "metrics", Doc: "What monitoring sees.", Value: Mapping{{
			Name: "listen", Value: addrPort(&c.Metrics.Listen), Default: "not served",
			Doc: "IP address and TCP port at which Prometheus finds `/metrics`; port 0 takes any " +
				"free one, and the log says which. Set it when you monitor the target, to an " +
				"address that only the monitoring reaches: there is no password.",
		}}},
		{
			Name: "listeners", Required: "Add at least one entry.",
			Value: List(&c.Listeners, 1, 256, (*Listener).value),
			Doc:   "The addresses where hosts connect.",
		},
		{
			Name: "subsystems", Required: "Add at least one entry.",
			Value: List(&c.Subsystems, 1, 1024, (*Subsystem).value),
			Doc:   "What hosts connect to.",
		},
		{
			Name:  "shutdown_timeout",
			Value: Duration(&c.ShutdownTimeout, time.Second, 10*time.Minute),
			Doc: "How long a stop (SIGTERM) waits for connections to drain. Set it when the " +
				"service manager or a failover allows less time, or slow disks need more.",
		},
	}
}

func (l *Log) keys() []Key {
	return []Key{
		{
			Name: "level", Value: Choose(&l.Level, Choice[slog.Level]{"debug", slog.LevelDebug},
				Choice[slog.Level]{"info", slog.LevelInfo},
				Choice[slog.Level]{"warn", slog.LevelWarn},
				Choice[slog.Level]{"error", slog.LevelError}),
			Doc: "The least severe lines that are logged; nothing is logged per I/O. Set it to " +
				"`debug` to find out why a host does not connect.",
		},
		{
			Name: "format", Value: Choose(&l.JSON, Choice[bool]{"text", false},
				Choice[bool]{"json", true}),
			Doc: "Form of the lines. Set it to `json` when a program reads the log.",
		},
	}
}

func (r *Reactors) keys() []Key {
	r.Memory, r.Spin = 64<<20, -1
	return []Key{
		{
			Name: "count", Value: Int(&r.Count, 0, 256),
			Default: "one for each of `cpus`, else half of the CPUs",
			Doc: "Number of reactors. Set it higher when the machine does nothing else, lower " +
				"when others need its CPUs.",
		},
		{
			Name: "cpus", Value: List(&r.CPUs, 0, 256, func(cpu *int) Value {
				return Unique(Int(cpu, 0, 4095), "Each reactor needs a CPU of its own.")
			}),
			Default: "the scheduler places them",
			Doc: "The CPU of each reactor. Set it when CPUs are reserved for the target, or to " +
				"keep reactors on the NUMA node of the network adapter.",
		},
		{
			Name: "memory", Value: Bytes(&r.Memory, 8<<20, 64*gib, AnySize),
			Doc: "Data memory of each reactor; transfers beyond it wait. Set it when many hosts " +
				"have large transfers outstanding, or when memory is scarce.",
		},
		{
			Name: "spin", Value: Duration(&r.Spin, 0, 100*time.Millisecond),
			Default: "200us to 1ms, measured",
			Doc: "The longest time that a reactor polls without finding work before it sleeps; " +
				"it adapts below that. Set it to `0s` to save CPU time at the price of latency " +
				"after a pause, or higher for the opposite.",
		},
	}
}

// queueDepth is the key of both transports.
func queueDepth(depth *int, limit int) Key {
	return Key{
		Name: "queue_depth", Value: Int(depth, target.MinQueueSize, limit),
		Doc: "The largest number of commands on one queue. Set it higher when hosts ask for " +
			"deeper queues (`nvme connect --queue-size`), lower to bound what one host can have " +
			"outstanding.",
	}
}

// connectionLimits are the keys of both transports.
func connectionLimits(all, perHost *int, limit int) []Key {
	return []Key{
		{
			Name: "max_connections", Value: Int(all, 1, limit),
			Doc: "The largest number of connections (queues). Set it higher when hosts times " +
				"their queues exceed it, lower to protect a small machine.",
		},
		{
			Name: "max_connections_per_host", Value: Int(perHost, 1, limit),
			Doc: "The largest number of connections from one address. Set it when many hosts " +
				"share an address (NAT, containers), or to keep one host from taking all " +
				"connections.",
		},
	}
}

func tcpKeys(c *tcp.Config) []Key {
	return append([]Key{
		queueDepth(&c.MaxDepth, tcp.MaxQueueDepth),
		{
			Name: "in_capsule_size", Value: Bytes(&c.InCapsuleSize, tcp.MinInCapsuleSize,
				tcp.MaxInCapsuleSize, tcp.InCapsuleUnit),
			Doc: "The most data that a write may carry in its command; larger writes wait one " +
				"round trip for an R2T. Set it lower when large writes crowd out small ones on a " +
				"slow link.",
		},
		{
			Name:  "queue_memory",
			Value: Bytes(&c.QueueMemory, tcp.MinQueueMemory, NoLimit, AnySize),
			Doc: "Memory of all queues besides data: 16 KiB each and 768 bytes for each command " +
				"of their depth. The default is enough for 9,300 queues of depth 128; more are " +
				"refused. Set it when the log reports queues that are refused because of it.",
		},
		{
			Name: "congestion_control", Value: Text(&c.CongestionControl), Default: "the system's",
			Doc: "Congestion control of the connections, one of `sysctl " +
				"net.ipv4.tcp_available_congestion_control`. Set it when the network needs " +
				"another algorithm than the rest of the machine, for instance `dctcp`; `bbr` " +
				"paces what is sent, which slows fast networks.",
		},
		{
			Name: "header_digest", Value: boolean(&c.NoHeaderDigest, false),
			Doc: "Whether hosts may enable the CRC32C of headers. Set it to `false` when hosts " +
				"ask for it and it is not worth the CPU time.",
		},
		{
			Name: "data_digest", Value: boolean(&c.NoDataDigest, false),
			Doc: "The same for data, which costs more.",
		},
	}, connectionLimits(&c.MaxConnections, &c.MaxConnectionsPerHost, tcp.ConnectionsLimit)...)
}

func rdmaKeys(c *rdma.Config) []Key {
	return append([]Key{
		queueDepth(&c.MaxDepth, rdma.DepthLimit),
		{
			Name:  "in_capsule_size",
			Value: Bytes(&c.InCapsuleSize, 0, rdma.InCapsuleLimit, rdma.InCapsuleUnit),
			Doc: "The most data that a write may carry in its command; 0 is none. Set it higher " +
				"when writes of more than 4 KiB are common and no host runs Linux 5.4 to 5.12, " +
				"which corrupt such writes.",
		},
		{
			Name:  "queue_memory",
			Value: Bytes(&c.QueueMemory, rdma.MinQueueMemory, NoLimit, AnySize),
			Doc: "Registered memory of all queues: depth times (in-capsule size + 80 bytes) " +
				"each. The default is enough for 1,900 queues of depth 128; more are refused. " +
				"Set it when the log reports queues that are refused because of it.",
		},
		{
			Name: "srq_size", Value: Int(&c.SRQSize, 0, rdma.SRQSizeLimit),
			Default: "0, no shared receive queue",
			Doc: "Size of the shared receive queue of each reactor and device, rounded up to " +
				"128, from which all queues receive commands instead of each having receives of " +
				"its own. Set it when many deep queues would need too much memory; when their " +
				"hosts send more commands at once, these wait. Not on iWARP.",
		},
	}, connectionLimits(&c.MaxQueues, &c.MaxQueuesPerHost, rdma.QueuesLimit)...)
}

func diskKeys(e *disk.Engine) []Key {
	e.Name = disk.Auto
	return []Key{
		{
			Name: "engine", Value: OneOf(&e.Name, disk.Auto, disk.IOUring, disk.Threads),
			Doc: "What makes the system calls: `threads` cost more CPU; `auto` uses them, with a " +
				"warning, only where io_uring is forbidden. Set it to `io_uring` when the target " +
				"should not start rather than run slower.",
		},
		{
			Name: "sqpoll", Value: Bool(&e.SQPoll),
			Doc: "A kernel thread fetches submissions, at the price of one CPU per reactor while " +
				"there is work. Set it when CPUs are plentiful and system calls limit the " +
				"throughput.",
		},
		{
			Name: "iopoll", Value: Bool(&e.IOPoll),
			Doc: "Drives are polled for completions instead of waiting for interrupts; NVMe " +
				"drives need the module parameter `nvme.poll_queues`. Set it when latency " +
				"matters more than CPU time.",
		},
	}
}

func (l *Listener) value() Value {
	l.Port = 4420
	return Mapping{
		{
			Name: "transport", Required: "Use one of: rdma, tcp.",
			Value: Choose(&l.Transport,
				Choice[nvme.TransportType]{"rdma", nvme.TransportRDMA},
				Choice[nvme.TransportType]{"tcp", nvme.TransportTCP}),
			Doc: "How hosts connect.",
		},
		{
			Name: "address", Value: address(&l.Address), Required: "Add it.",
			Doc: "IPv4 or IPv6 address; `0.0.0.0` or `\"::\"` is every address. A link-local one " +
				"needs its interface: `fe80::1%eth0`.",
		},
		{
			Name: "port", Value: Int(&l.Port, 0, 0xFFFF),
			Doc: "Port number; 0 takes any free one. Set it when 4420 is taken or several " +
				"listeners share an address.",
		},
		{
			Name: "tos", Value: Int(&l.TOS, 0, 0xFF),
			Doc: "`rdma` only: type of service, four times the DSCP. Set it when an iWARP " +
				"network has classes of traffic; on RoCE the host decides (`nvme connect --tos`).",
		},
		{
			Name: "on_unavailable", Value: Choose(&l.Required,
				Choice[bool]{"wait", false}, Choice[bool]{"fail", true}),
			Doc: "What to do while the address or the RDMA device is missing: serve everything " +
				"else and wait for it, or exit. Set it to `fail` when another instance takes " +
				"over in that case.",
		},
	}
}

func (s *Subsystem) value() Value {
	s.SetDefaults()
	return Mapping{
		{
			Name: "nqn", Value: nqn(&s.NQN, "Give each subsystem its own NQN.", subsystemNQN),
			Required: "Add it.",
			Doc:      "The name that hosts connect to: `nqn.YYYY-MM.REVERSED.DOMAIN:NAME`.",
		},
		{
			Name: "allow_any_host", Value: Bool(&s.AllowAnyHost),
			Doc: "Every host may connect. Set it when everything that can reach a listener may " +
				"use the storage.",
		},
		{
			Name: "hosts", Default: "none",
			Value: List(&s.Hosts, 0, 4096, func(h *string) Value {
				return nqn(h, "Delete one of the two.", nvme.ValidateNQN)
			}),
			Doc: "The host NQNs that may connect (`cat /etc/nvme/hostnqn` on the host). Set it " +
				"unless `allow_any_host` is set. An NQN is no proof of identity: any host that " +
				"reaches the port can claim it.",
		},
		{
			Name: "serial", Value: ascii(&s.Serial, target.SerialSize),
			Default: "derived from the NQN",
			Doc: "Serial number. Set it when hosts know the subsystem by another one, for " +
				"instance after a migration.",
		},
		{
			Name: "model", Value: ascii(&s.Model, target.ModelSize),
			Doc: "Model number. Set it when hosts or their udev rules select storage by it.",
		},
		{
			Name: "cntlid_min", Value: Int(&s.CNTLIDMin, target.MinCNTLID, int(nvme.CNTLIDMax)),
			Doc: "The first controller ID. Set it when several targets serve the same subsystem, " +
				"which need disjoint ranges.",
		},
		{
			Name: "cntlid_max", Value: Int(&s.CNTLIDMax, target.MinCNTLID, int(nvme.CNTLIDMax)),
			Doc: "The last controller ID. Set it with `cntlid_min`.",
		},
		{
			Name: "max_io_queues", Value: Int(&s.MaxIOQueues, 1, target.MaxIOQueues),
			Doc: "The largest number of I/O queues of a host. Set it lower when hosts with many " +
				"CPUs take more connections than the target has memory for.",
		},
		{
			Name: "max_transfer", Value: Bytes(&s.MaxTransfer, target.MinTransfer,
				target.MaxTransfer, PowerOfTwo),
			Doc: "The most data of one command, at most a quarter of `reactors.memory`; hosts " +
				"split larger ones. Set it lower when large commands delay small ones, higher " +
				"when the storage is faster with large ones.",
		},
		{
			Name: "namespaces", Required: "Add at least one entry.",
			Value: List(&s.Namespaces, 1, 1024, (*Namespace).value),
			Doc:   "The disks that hosts see.",
		},
	}
}

func (n *Namespace) value() Value {
	n.Timeout = 20 * time.Second
	storage := &n.Storage
	return &storageValue{&storage, []Key{
		{
			Name: "nsid", Required: "Add it.",
			Value: Unique(Int(&n.NSID, 1, target.MaxNSID),
				"Give each namespace of a subsystem its own nsid."),
			Doc: "Namespace ID, the 1 of `/dev/nvme0n1`.",
		},
		{
			Name: "uuid", Value: id(&n.UUID), Default: "derived from NQN and NSID",
			Doc: "Identifier of the namespace. Set it when hosts know the namespace by another " +
				"one, for instance after a migration.",
		},
		{
			Name: "nguid", Value: hexadecimal(n.NGUID[:]), Default: "derived from NQN and NSID",
			Doc: "The same as an NGUID.",
		},
		{
			Name: "eui64", Value: hexadecimal(n.EUI64[:]), Default: "none",
			Doc: "The same as an EUI-64.",
		},
		{
			Name: "read_only", Value: Bool(&n.ReadOnly),
			Doc: "Writes are refused. Set it when hosts must not write.",
		},
		{
			Name: "io_timeout", Value: Duration(&n.Timeout, 0, time.Hour),
			Doc: "How long the storage may take for a command before it is given up and hosts " +
				"try again; the namespace is not ready until the storage answers. `0s` waits for " +
				"ever. Not for `ram` and `\"null\"`, which always answer. Set it higher when the " +
				"storage may be that slow; below the 30s of Linux hosts these keep their " +
				"connections.",
		},
	}}
}
