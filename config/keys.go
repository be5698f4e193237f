package config

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Key is one key of a mapping. As with a flag, the default is the content of the variable behind
// Value before the file is read.
type Key struct {
	Name  string
	Value Value
	// Doc gives the meaning of the key and when to set it.
	Doc string
	// Required is the hint of the error for a missing key; "" means the key is optional.
	Required string
	// Default describes the default in the documentation if the variable does not.
	Default string
	// Restart: a change of the key, or of any key of the section, needs a restart of the target.
	// All other changes are live.
	Restart bool
	// File: the key Name_file can name a file with the value instead.
	File bool
	// Secret: such a file must not be readable by everybody, and Name_command can name a program
	// that prints the value.
	Secret bool
}

// NewKey makes an optional key.
func NewKey(name string, v Value, doc string) Key { return Key{Name: name, Value: v, Doc: doc} }

// Require returns the key with a hint for files without it.
func (k Key) Require(hint string) Key {
	k.Required = hint
	return k
}

// Without returns the key with a description of its default.
func (k Key) Without(text string) Key {
	k.Default = text
	return k
}

// NeedsRestart returns the key with Restart set.
func (k Key) NeedsRestart() Key {
	k.Restart = true
	return k
}

const gib = 1 << 30

// keys is the schema of the file. It sets the defaults.
func (c *Config) keys() []Key {
	c.TCP.SetDefaults()
	c.RDMA.SetDefaults()
	c.ShutdownTimeout = 10 * time.Second
	return append([]Key{c.includeKey()}, append(c.managedKeys(), []Key{
		NewKey("log", Mapping(c.Log.keys()), "The log, written to stderr."),
		NewKey("reactors", Mapping(c.Reactors.keys()), "The polling threads that serve all I/O.").
			NeedsRestart(),
		NewKey("tcp", Mapping(tcpKeys(&c.TCP)),
			"The TCP transport. Changes concern new connections."),
		NewKey("rdma", Mapping(rdmaKeys(&c.RDMA)),
			"The RDMA transport. Changes concern new connections."),
		NewKey("disks", Mapping(diskKeys(&c.Disks)), "How files and disks are read and written.").
			NeedsRestart(),
		NewKey("metrics", Mapping(metricsKeys(&c.Metrics)), "Metrics for monitoring."),
		NewKey("web", Mapping(c.webKeys()), "The page that shows a browser the target."),
		NewKey("control", Mapping(append(c.Control.keys(), c.Control.rolesKey())),
			"Where `nvmf-target status` and others reach the running target."),
		NewKey("audit", Mapping(c.Audit.keys()),
			"The record of security events and of administration. The log always has it, as "+
				"lines with `audit=`."),
		NewKey("discovery", Mapping(c.Discovery.keys()),
			"How hosts find subsystems."),
		NewKey("secure_only", Bool(&c.SecureOnly),
			"All subsystems and the discovery service require `security`, by default `auth`. A "+
				"configuration is refused if it has `allow_any_host`, hosts of a subsystem "+
				"without a key, or metrics or a page that other machines reach without a "+
				"certificate and a token. Set it when no mistake may give access to hosts that "+
				"have not proven their identity."),
		NewKey("listeners", List(&c.Listeners, 0, MaxListeners, (*Listener).value),
			"The addresses where hosts connect.").Without("required"),
		NewKey("hosts", List(&c.Hosts, 0, 4096, (*Host).value),
			"Settings of single hosts in all subsystems. A host needs no entry here; `hosts` of "+
				"a subsystem allows it to connect."),
		NewKey("subsystems", List(&c.Subsystems, 0, 1024, (*Subsystem).value),
			"The subsystems that hosts connect to.").Without("required"),
		NewKey("shutdown_timeout", Duration(&c.ShutdownTimeout, time.Second, 10*time.Minute),
			"How long a stop (SIGTERM) waits for connections to drain. Set it when the service "+
				"manager or a failover allows less time, or slow disks need more."),
	}...)...)
}

func (l *Log) keys() []Key {
	return []Key{
		NewKey("level", Choose(&l.Level, Choice[slog.Level]{"debug", slog.LevelDebug},
			Choice[slog.Level]{"info", slog.LevelInfo},
			Choice[slog.Level]{"warn", slog.LevelWarn},
			Choice[slog.Level]{"error", slog.LevelError}),
			"The least severe lines that are logged. Set it to "+
				"`debug` to find out why a host does not connect."),
		NewKey("format", Either(&l.JSON, "text", "json"),
			"Form of the lines. Set it to `json` when a program reads the log.").
			NeedsRestart(),
		NewKey("slow_io", Duration(&l.SlowIO, 0, time.Hour),
			"Commands for namespaces that take this long or longer are logged with the time in "+
				"each stage, at most ten of one address in ten seconds; `0s` logs none. "+
				"Set it to find out where single commands wait."),
	}
}

func (r *Reactors) keys() []Key {
	r.Memory, r.Spin = 64<<20, -1
	return []Key{
		NewKey("count", Int(&r.Count, 0, 256),
			"Number of reactors. Set it higher when the machine does nothing else, lower when "+
				"others need its CPUs.").Without("one for each of `cpus`, else half of the CPUs"),
		NewKey("cpus", Sequence(&r.CPUs, 0, 256, func(cpu *int) Value {
			return Unique(Int(cpu, 0, 4095), "Each reactor needs a CPU of its own.")
		}),
			"The CPU of each reactor. Set it when CPUs are reserved for the target, or to keep "+
				"reactors on the NUMA node of the network adapter.").
			Without("the scheduler places them"),
		NewKey("memory", Bytes(&r.Memory, 8<<20, 64*gib, AnySize),
			"Data memory of each reactor; transfers beyond it wait. Set it when many hosts have "+
				"large transfers outstanding, or when memory is scarce."),
		NewKey("spin", Duration(&r.Spin, 0, 100*time.Millisecond),
			"The longest time that a reactor polls without finding work before it sleeps; it "+
				"adapts below that. Set it to `0s` to save CPU time at the price of latency "+
				"after a pause, or higher for the opposite.").Without("200us to 1ms, measured"),
	}
}

// queueDepth is a key of both transports.
func queueDepth(depth *int, limit int) Key {
	return NewKey("queue_depth", Int(depth, target.MinQueueSize, limit),
		"The largest number of commands on one queue. Set it higher when hosts ask for deeper "+
			"queues (`nvme connect --queue-size`), lower to bound the commands that one host can "+
			"have outstanding.")
}

// connectionLimits are keys of both transports.
func connectionLimits(all, perHost *int, limit int) []Key {
	return []Key{
		NewKey("max_connections", Int(all, 1, limit),
			"The largest number of connections (queues). Peers that have not shown to be allowed "+
				"hosts share a part of it, and no host takes all of the rest (see Tuning, shares "+
				"of connections). Set it higher when hosts times their queues exceed seven "+
				"eighths of it, lower to protect a small machine."),
		NewKey("max_connections_per_host", Int(perHost, 1, limit),
			"The largest number of connections of a host that has authenticated or uses TLS, and "+
				"of all others from one address or IPv6 /64 together; peers without a successful "+
				"Connect count apart. Set it higher when many such hosts share an address (NAT, "+
				"containers) or a /64, lower to keep one host from taking many connections."),
	}
}

func tcpKeys(c *tcp.Config) []Key {
	return append([]Key{
		queueDepth(&c.MaxDepth, tcp.MaxQueueDepth),
		NewKey("in_capsule_size", Bytes(&c.InCapsuleSize, tcp.MinInCapsuleSize,
			tcp.MaxInCapsuleSize, tcp.InCapsuleUnit),
			"The most data that a write may carry in its command; larger writes wait one round "+
				"trip for an R2T. Set it lower when large writes crowd out small ones on a slow "+
				"link.").NeedsRestart(),
		NewKey("queue_memory", Bytes(&c.QueueMemory, tcp.MinQueueMemory, NoLimit, AnySize),
			"Memory of all queues besides data: 16 KiB each and 864 bytes for each command of "+
				"their depth. The default is enough for 8,400 queues of depth 128; more are "+
				"refused. Set it when the log reports queues that are refused because of it."),
		NewKey("congestion_control", Text(&c.CongestionControl),
			"Congestion control of the connections, one of `sysctl "+
				"net.ipv4.tcp_available_congestion_control`. Set it when the network needs "+
				"another algorithm than the rest of the machine, for instance `dctcp`; `bbr` "+
				"paces packets, which slows fast networks.").Without("the system's").
			NeedsRestart(),
		NewKey("header_digest", boolean(&c.NoHeaderDigest, false),
			"Whether hosts may enable the CRC32C of headers. Set it to `false` when hosts ask "+
				"for it and it is not worth the CPU time."),
		NewKey("data_digest", boolean(&c.NoDataDigest, false),
			"The same for data, which costs more."),
	}, connectionLimits(&c.MaxConnections, &c.MaxConnectionsPerHost, tcp.ConnectionsLimit)...)
}

func rdmaKeys(c *rdma.Config) []Key {
	return append([]Key{
		queueDepth(&c.MaxDepth, rdma.DepthLimit),
		NewKey("in_capsule_size",
			Bytes(&c.InCapsuleSize, 0, rdma.InCapsuleLimit, rdma.InCapsuleUnit),
			"The most data that a write may carry in its command; 0 is none. Set it higher when "+
				"writes of more than 4 KiB are common and no host runs Linux 5.4 to 5.12, which "+
				"corrupt such writes.").NeedsRestart(),
		NewKey("queue_memory", Bytes(&c.QueueMemory, rdma.MinQueueMemory, NoLimit, AnySize),
			"Registered memory of all queues: depth times (in-capsule size + 80 bytes) each. The "+
				"default is enough for 1,900 queues of depth 128; more are refused. Set it when "+
				"the log reports queues that are refused because of it."),
		NewKey("srq_size", Int(&c.SRQSize, 0, rdma.SRQSizeLimit),
			"Size of the shared receive queue of each reactor and device, rounded up to 128, "+
				"from which all queues receive commands instead of each having receives of its "+
				"own. Set it when many deep queues would need too much memory; when their hosts "+
				"send more commands at once, these wait. Not on iWARP.").
			Without("0, no shared receive queue").NeedsRestart(),
	}, connectionLimits(&c.MaxQueues, &c.MaxQueuesPerHost, rdma.QueuesLimit)...)
}

func diskKeys(e *disk.Engine) []Key {
	e.Name = disk.Auto
	return []Key{
		NewKey("engine", OneOf(&e.Name, disk.Auto, disk.IOUring, disk.Threads),
			"The way to make system calls: `threads` cost more CPU; `auto` uses them, with a "+
				"warning, only where io_uring is forbidden. Set it to `io_uring` when the target "+
				"should rather not start than run slower."),
	}
}

func (h *Host) value() Value {
	return append(Mapping{
		NewKey("nqn", Unique(nqn(&h.NQN, nil), "Write one entry for each host."),
			"NQN of the host (`cat /etc/nvme/hostnqn` on the host), of any form.").
			Require("Add it."),
		NewKey("networks", List(&h.Networks, 0, 256, func(n *netip.Prefix) Value {
			return Unique(network(n), "Delete one of the two.")
		}),
			"The networks that it may connect from, as in `10.0.0.0/24` or `10.0.0.7/32`. Set it "+
				"when a machine elsewhere that knows the NQN must not be taken for the host; an "+
				"address is no proof either.").Without("any"),
		limitsKey(&h.Limits, "The host, in all subsystems together, gets no more than this."),
	}, h.Authentication.keys()...)
}

// slowest is the smallest plausible bandwidth: at it a command of 1 MiB takes 16 s.
const slowest = 64 << 10

// limitsKey is the key of hosts, subsystems and namespaces.
func limitsKey(l *qos.Limits, doc string) Key {
	l.Burst = qos.DefaultBurst
	return NewKey("limits", Mapping{
		NewKey("iops", Int(&l.IOPS, 1, 1_000_000_000),
			"Commands per second that read or change blocks. Set it when small commands take more "+
				"of the storage or the CPUs than is fair.").Without("no limit"),
		NewKey("bandwidth", Doubtful(Bytes(&l.Bandwidth, 1, NoLimit, AnySize),
			func(word string) (what, hint string) {
				if l.Bandwidth >= slowest {
					return "", ""
				}
				return fmt.Sprintf("%s is %d bytes per second, less than %v", word, l.Bandwidth,
						Size(slowest)), "Commands will take many seconds, and hosts may give up. " +
						"Write a unit, as in 100MiB, if that is meant."
			}),
			"Data of reads, writes and Write Zeroes, in bytes per second (`200MiB`). Set it when "+
				"large commands take more of the storage or the network than is fair.").
			Without("no limit"),
		NewKey("burst", Duration(&l.Burst, qos.MinBurst, qos.MaxBurst),
			"The burst allowed after a pause: as much as the limits allow in this time. Set it "+
				"higher when bursts of hosts should not be delayed."),
	}, doc)
}

func (s *Subsystem) value() Value {
	s.SetDefaults()
	return Mapping{
		NewKey("nqn", Unique(nqn(&s.NQN, subsystemNQN), "Give each subsystem its own NQN."),
			"The name that hosts connect to: `nqn.YYYY-MM.REVERSED.DOMAIN:NAME`. Others are "+
				"warned of: not all hosts take them.").
			Require("Add it.").OrFile(),
		NewKey("allow_any_host", Bool(&s.AllowAnyHost),
			"Every host may connect. Set it when everything that can reach a listener may use "+
				"the storage."),
		NewKey("hosts", hostList(&s.Hosts),
			"The host NQNs that may connect (`cat /etc/nvme/hostnqn` on the host). Set it unless "+
				"`allow_any_host` is set. An NQN is no proof of identity: any host that reaches "+
				"the port can claim it, unless the host has a `dhchap_key`.").Without("none"),
		NewKey("security", security(&s.Security),
			"The security required of allowed hosts: `auth`, authentication with a `dhchap_key`; "+
				"`tls`, TLS (TCP only) with a `tls_key` or a key of secure channel concatenation; "+
				"`auth+tls`, both. For all others the subsystem does not exist. With `none`, "+
				"hosts with a key authenticate, and others connect without. Set it when an NQN is "+
				"not enough; `allow_any_host` then allows every host with a key."),
		NewKey("duplicate_hosts", Either(&s.RefuseDuplicateHosts, "allow", "refuse"),
			"The treatment of a host with the NQN of a connected host but another host "+
				"identifier, or the other way around, as with copied machines: `allow` it "+
				"with a warning in the log, or `refuse` it. Set it to `refuse` when two machines "+
				"that take each other's disks are worse than one that cannot connect.").
			Without("allow"),
		NewKey("listeners", List(&s.Listeners, 0, MaxListeners, func(l *string) Value {
			return Unique(Text(l), "Delete one of the two.")
		}),
			"The listeners that serve the subsystem, each by its name or as in `10.0.0.1:4420` or "+
				"`tcp eth0:4420`. Through others it does not exist. Set it when networks must not "+
				"see each other's subsystems, or to keep a subsystem on its fastest network.").
			Without("all"),
		NewKey("serial", ascii(&s.Serial, target.SerialSize),
			"Serial number. Set it when hosts know the subsystem by another one, for instance "+
				"after a migration.").Without("derived from the NQN").OrFile(),
		NewKey("model", ascii(&s.Model, target.ModelSize),
			"Model number. Set it when hosts or their udev rules select storage by it.").OrFile(),
		NewKey("cntlid_min", Int(&s.CNTLIDMin, target.MinCNTLID, int(nvme.CNTLIDMax)),
			"The first controller ID. Set it when several targets serve the same subsystem, "+
				"which need disjoint ranges."),
		NewKey("cntlid_max", Int(&s.CNTLIDMax, target.MinCNTLID, int(nvme.CNTLIDMax)),
			"The last controller ID. Set it with `cntlid_min`."),
		NewKey("max_io_queues", Int(&s.MaxIOQueues, 1, target.MaxIOQueues),
			"The largest number of I/O queues of a host. Set it lower when hosts with many CPUs "+
				"take more connections than the target has memory for."),
		NewKey("max_transfer", Bytes(&s.MaxTransfer, target.MinTransfer,
			target.MaxTransfer, PowerOfTwo),
			"The most data of one command, at most a quarter of `reactors.memory`; hosts split "+
				"larger ones. Set it lower when large commands delay small ones, higher when the "+
				"storage is faster with large ones."),
		limitsKey(&s.Limits, "All hosts together get no more than this; each that wants more gets "+
			"an equal part."),
		NewKey("namespaces", List(&s.Namespaces, 0, 1024, (*Namespace).value),
			"The disks that hosts see. There may be none, for instance before the first is there: "+
				"hosts connect, and notice one that is added.").Without("none"),
	}
}

// hostList is a list of the NQNs of hosts.
func hostList(p *[]string) Value {
	return List(p, 0, 4096, func(h *string) Value {
		return Unique(nqn(h, nil), "Delete one of the two.")
	})
}

func (n *Namespace) value() Value {
	n.Timeout, n.ANAGroup = 20*time.Second, 1
	storage := &n.Storage
	return &storageValue{p: &storage, common: []Key{
		NewKey("nsid", Unique(Int(&n.NSID, 1, target.MaxNSID),
			"Give each namespace of a subsystem its own nsid."),
			"Namespace ID, the 1 of `/dev/nvme0n1`.").Require("Add it."),
		NewKey("uuid", id(&n.UUID),
			"Identifier of the namespace. Set it when hosts know the namespace by another one, "+
				"for instance after a migration.").
			Without("derived from NQN and NSID, if there is no other identifier").OrFile(),
		NewKey("nguid", hexadecimal(n.NGUID[:]),
			"The same as an NGUID.").
			Without("derived from NQN and NSID, if there is no other identifier").OrFile(),
		NewKey("eui64", hexadecimal(n.EUI64[:]), "The same as an EUI-64.").Without("none").
			OrFile(),
		NewKey("read_only", Bool(&n.ReadOnly),
			"Writes are refused. Set it when hosts must not write."),
		NewKey("hosts", hostList(&n.Hosts),
			"The NQNs of the hosts of the subsystem that see the namespace. Set it when hosts "+
				"share a subsystem but not their disks.").Without("all"),
		NewKey("io_timeout", Duration(&n.Timeout, 0, time.Hour),
			"How long the storage may take for a command before it is given up and hosts try "+
				"again; the namespace is not ready until the storage answers. `0s` waits for "+
				"ever. Not for `ram` and `\"null\"`, which always answer. Set it higher when the "+
				"storage may be that slow; below the 30s of Linux hosts these keep their "+
				"connections."),
		NewKey("ana_group", Int(&n.ANAGroup, 1, ana.MaxGroups),
			"ANA group; `ana_states` of the listeners sets its states. Set it when the "+
				"listeners are not equally good for all namespaces."),
		limitsKey(&n.Limits, "All hosts together get no more than this; each host that wants more "+
			"gets an equal part."),
	}}
}
