package config

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

const gib = 1 << 30

// includeKey is the key for more files.
func (c *Config) includeKey() lang.Key {
	return lang.IncludeKey(&c.includes,
		"More files, which are read as if they were part of this one. A pattern with `*`, `?` "+
			"or `[a-z]` names the files that match, sorted; files that begin with a dot do not. "+
			"Paths are relative to the directory of this file. Lists of listeners, hosts, "+
			"referrals and subsystems are appended to the lists of earlier files. Entries of "+
			"several files with the same `nqn` are one subsystem: one of them describes it, the "+
			"others have only `nqn`, `hosts` and `namespaces`. No other key may be in two files, "+
			"and included files include no others; no environment variable overrides this key. "+
			"Set it when several people or programs write parts of the configuration.").
		Without("none")
}

// keys is the schema of the file. It sets the defaults.
func (c *Config) keys(backends []Backend) []lang.Key {
	c.TCP.SetDefaults()
	c.RDMA.SetDefaults()
	c.ShutdownTimeout = 10 * time.Second
	return append([]lang.Key{c.includeKey()}, append(c.managedKeys(), []lang.Key{
		lang.NewKey("log", lang.Mapping(c.Log.keys()), "The log, written to stderr."),
		lang.NewKey("reactors", lang.Mapping(c.Reactors.keys()),
			"The polling threads that serve all I/O.").NeedsRestart(),
		lang.NewKey("tcp", lang.Mapping(tcpKeys(&c.TCP)),
			"The TCP transport. Changes concern new connections."),
		lang.NewKey("rdma", lang.Mapping(rdmaKeys(&c.RDMA)),
			"The RDMA transport. Changes concern new connections."),
		lang.NewKey("disks", lang.Mapping(diskKeys(&c.Disks)),
			"How files and disks are read and written.").NeedsRestart(),
		lang.NewKey("metrics", lang.Mapping(metricsKeys(&c.Metrics)), "Metrics for monitoring."),
		lang.NewKey("web", lang.Mapping(c.webKeys()), "The page that shows a browser the target."),
		lang.NewKey("control", lang.Mapping(append(c.Control.keys(), c.Control.rolesKey())),
			"Where `nvmf-target status` and others reach the running target."),
		lang.NewKey("audit", lang.Mapping(c.Audit.keys()),
			"The record of security events and of administration. The log always has it, as "+
				"lines with `audit=`."),
		lang.NewKey("discovery", lang.Mapping(c.Discovery.keys()),
			"How hosts find subsystems."),
		lang.NewKey("secure_only", lang.Bool(&c.SecureOnly),
			"All subsystems and the discovery service require `security`, by default `auth`. A "+
				"configuration is refused if it has `allow_any_host`, hosts of a subsystem "+
				"without a key, or metrics or a page that other machines reach without a "+
				"certificate and a token. Set it when no mistake may give access to hosts that "+
				"have not proven their identity."),
		lang.NewKey("listeners", lang.List(&c.Listeners, 0, MaxListeners, (*Listener).value),
			"The addresses where hosts connect.").Without("required").Extended(),
		lang.NewKey("hosts", lang.List(&c.Hosts, 0, 4096, (*Host).value),
			"Settings of single hosts in all subsystems. A host needs no entry here; `hosts` of "+
				"a subsystem allows it to connect.").Extended(),
		lang.NewKey("subsystems", lang.List(&c.Subsystems, 0, 1024,
			func(s *Subsystem) lang.Value { return s.value(backends) }),
			"The subsystems that hosts connect to.").Without("required").
			Shared("nqn", "hosts", "namespaces"),
		lang.NewKey("shutdown_timeout",
			lang.Duration(&c.ShutdownTimeout, time.Second, 10*time.Minute),
			"How long a stop (SIGTERM) waits for connections to drain. Set it when the service "+
				"manager or a failover allows less time, or slow disks need more."),
	}...)...)
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
				"each stage, at most ten of one address in ten seconds; `0s` logs none. "+
				"Set it to find out where single commands wait."),
	}
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
		lang.NewKey("memory", lang.Bytes(&r.Memory, 8<<20, 64*gib, lang.AnySize),
			"Data memory of each reactor; transfers beyond it wait. Set it when many hosts have "+
				"large transfers outstanding, or when memory is scarce."),
		lang.NewKey("spin", lang.Duration(&r.Spin, 0, 100*time.Millisecond),
			"The longest time that a reactor polls without finding work before it sleeps; it "+
				"adapts below that. Set it to `0s` to save CPU time at the price of latency "+
				"after a pause, or higher for the opposite.").Without("200us to 1ms, measured"),
	}
}

// queueDepth is a key of both transports.
func queueDepth(depth *int, limit int) lang.Key {
	return lang.NewKey("queue_depth", lang.Int(depth, target.MinQueueSize, limit),
		"The largest number of commands on one queue. Set it higher when hosts ask for deeper "+
			"queues (`nvme connect --queue-size`), lower to bound the commands that one host can "+
			"have outstanding.")
}

// connectionLimits are keys of both transports.
func connectionLimits(all, perHost *int, limit int) []lang.Key {
	return []lang.Key{
		lang.NewKey("max_connections", lang.Int(all, 1, limit),
			"The largest number of connections (queues). Peers that have not shown to be allowed "+
				"hosts share a part of it, and no host takes all of the rest (see Tuning, shares "+
				"of connections). Set it higher when hosts times their queues exceed seven "+
				"eighths of it, lower to protect a small machine."),
		lang.NewKey("max_connections_per_host", lang.Int(perHost, 1, limit),
			"The largest number of connections of a host that has authenticated or uses TLS, and "+
				"of all others from one address or IPv6 /64 together; peers without a successful "+
				"Connect count apart. Set it higher when many such hosts share an address (NAT, "+
				"containers) or a /64, lower to keep one host from taking many connections."),
	}
}

func tcpKeys(c *tcp.Config) []lang.Key {
	return append([]lang.Key{
		queueDepth(&c.MaxDepth, tcp.MaxQueueDepth),
		lang.NewKey("in_capsule_size", lang.Bytes(&c.InCapsuleSize, tcp.MinInCapsuleSize,
			tcp.MaxInCapsuleSize, tcp.InCapsuleUnit),
			"The most data that a write may carry in its command; larger writes wait one round "+
				"trip for an R2T. Set it lower when large writes crowd out small ones on a slow "+
				"link.").NeedsRestart(),
		lang.NewKey("queue_memory",
			lang.Bytes(&c.QueueMemory, tcp.MinQueueMemory, lang.NoLimit, lang.AnySize),
			"Memory of all queues besides data: 16 KiB each and 864 bytes for each command of "+
				"their depth. The default is enough for 8,400 queues of depth 128; more are "+
				"refused. Set it when the log reports queues that are refused because of it."),
		lang.NewKey("congestion_control", lang.Text(&c.CongestionControl),
			"Congestion control of the connections, one of `sysctl "+
				"net.ipv4.tcp_available_congestion_control`. Set it when the network needs "+
				"another algorithm than the rest of the machine, for instance `dctcp`; `bbr` "+
				"paces packets, which slows fast networks.").Without("the system's").
			NeedsRestart(),
		lang.NewKey("header_digest", lang.Not(&c.NoHeaderDigest),
			"Whether hosts may enable the CRC32C of headers. Set it to `false` when hosts ask "+
				"for it and it is not worth the CPU time."),
		lang.NewKey("data_digest", lang.Not(&c.NoDataDigest),
			"The same for data, which costs more."),
	}, connectionLimits(&c.MaxConnections, &c.MaxConnectionsPerHost, tcp.ConnectionsLimit)...)
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
			lang.Bytes(&c.QueueMemory, rdma.MinQueueMemory, lang.NoLimit, lang.AnySize),
			"Registered memory of all queues: depth times (in-capsule size + 80 bytes) each. The "+
				"default is enough for 1,900 queues of depth 128; more are refused. Set it when "+
				"the log reports queues that are refused because of it."),
		lang.NewKey("srq_size", lang.Int(&c.SRQSize, 0, rdma.SRQSizeLimit),
			"Size of the shared receive queue of each reactor and device, rounded up to 128, "+
				"from which all queues receive commands instead of each having receives of its "+
				"own. Set it when many deep queues would need too much memory; when their hosts "+
				"send more commands at once, these wait. Not on iWARP.").
			Without("0, no shared receive queue").NeedsRestart(),
	}, connectionLimits(&c.MaxQueues, &c.MaxQueuesPerHost, rdma.QueuesLimit)...)
}

func diskKeys(e *disk.Engine) []lang.Key {
	e.Name = disk.Auto
	return []lang.Key{
		lang.NewKey("engine", lang.OneOf(&e.Name, disk.Auto, disk.IOUring, disk.Threads),
			"The way to make system calls: `threads` cost more CPU; `auto` uses them, with a "+
				"warning, only where io_uring is forbidden. Set it to `io_uring` when the target "+
				"should rather not start than run slower."),
	}
}

func (h *Host) value() lang.Value {
	return append(lang.Mapping{
		lang.NewKey("nqn", lang.Unique(nqn(&h.NQN, nil), "Write one entry for each host."),
			"NQN of the host (`cat /etc/nvme/hostnqn` on the host), of any form.").
			Require("Add it."),
		lang.NewKey("networks", lang.List(&h.Networks, 0, 256, func(n *netip.Prefix) lang.Value {
			return lang.Unique(network(n), "Delete one of the two.")
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
func limitsKey(l *qos.Limits, doc string) lang.Key {
	l.Burst = qos.DefaultBurst
	return lang.NewKey("limits", lang.Mapping{
		lang.NewKey("iops", lang.Int(&l.IOPS, 1, 1_000_000_000),
			"Commands per second that read or change blocks. Set it when small commands take more "+
				"of the storage or the CPUs than is fair.").Without("no limit"),
		lang.NewKey("bandwidth", lang.Doubtful(
			lang.Bytes(&l.Bandwidth, 1, lang.NoLimit, lang.AnySize),
			func(word string) (what, hint string) {
				if l.Bandwidth >= slowest {
					return "", ""
				}
				return fmt.Sprintf("%s is %d bytes per second, less than %v", word, l.Bandwidth,
						lang.Size(slowest)),
					"Commands will take many seconds, and hosts may give up. Write a unit, as in " +
						"100MiB, if that is meant."
			}),
			"Data of reads, writes and Write Zeroes, in bytes per second (`200MiB`). Set it when "+
				"large commands take more of the storage or the network than is fair.").
			Without("no limit"),
		lang.NewKey("burst", lang.Duration(&l.Burst, qos.MinBurst, qos.MaxBurst),
			"The burst allowed after a pause: as much as the limits allow in this time. Set it "+
				"higher when bursts of hosts should not be delayed."),
	}, doc)
}

func (s *Subsystem) value(backends []Backend) lang.Value {
	s.SetDefaults()
	return lang.Mapping{
		lang.NewKey("nqn",
			lang.Unique(nqn(&s.NQN, subsystemNQN), "Give each subsystem its own NQN."),
			"The name that hosts connect to: `nqn.YYYY-MM.REVERSED.DOMAIN:NAME`. Others are "+
				"warned of: not all hosts take them.").
			Require("Add it.").OrFile(),
		lang.NewKey("allow_any_host", lang.Bool(&s.AllowAnyHost),
			"Every host may connect. Set it when everything that can reach a listener may use "+
				"the storage."),
		lang.NewKey("hosts", hostList(&s.Hosts),
			"The host NQNs that may connect (`cat /etc/nvme/hostnqn` on the host). Set it unless "+
				"`allow_any_host` is set. An NQN is no proof of identity: any host that reaches "+
				"the port can claim it, unless the host has a `dhchap_key`.").Without("none"),
		lang.NewKey("security", security(&s.Security),
			"The security required of allowed hosts: `auth`, authentication with a `dhchap_key`; "+
				"`tls`, TLS (TCP only) with a `tls_key` or a key of secure channel concatenation; "+
				"`auth+tls`, both. For all others the subsystem does not exist. With `none`, "+
				"hosts with a key authenticate, and others connect without. Set it when an NQN is "+
				"not enough; `allow_any_host` then allows every host with a key."),
		lang.NewKey("duplicate_hosts", lang.Either(&s.RefuseDuplicateHosts, "allow", "refuse"),
			"The treatment of a host with the NQN of a connected host but another host "+
				"identifier, or the other way around, as with copied machines: `allow` it "+
				"with a warning in the log, or `refuse` it. Set it to `refuse` when two machines "+
				"that take each other's disks are worse than one that cannot connect.").
			Without("allow"),
		lang.NewKey("listeners", lang.List(&s.Listeners, 0, MaxListeners,
			func(l *string) lang.Value {
				return lang.Unique(lang.Text(l), "Delete one of the two.")
			}),
			"The listeners that serve the subsystem, each by its name or as in `10.0.0.1:4420` or "+
				"`tcp eth0:4420`. Through others it does not exist. Set it when networks must not "+
				"see each other's subsystems, or to keep a subsystem on its fastest network.").
			Without("all"),
		lang.NewKey("serial", ascii(&s.Serial, target.SerialSize),
			"Serial number. Set it when hosts know the subsystem by another one, for instance "+
				"after a migration.").Without("derived from the NQN").OrFile(),
		lang.NewKey("model", ascii(&s.Model, target.ModelSize),
			"Model number. Set it when hosts or their udev rules select storage by it.").OrFile(),
		lang.NewKey("cntlid_min", lang.Int(&s.CNTLIDMin, target.MinCNTLID, int(nvme.CNTLIDMax)),
			"The first controller ID. Set it when several targets serve the same subsystem, "+
				"which need disjoint ranges."),
		lang.NewKey("cntlid_max", lang.Int(&s.CNTLIDMax, target.MinCNTLID, int(nvme.CNTLIDMax)),
			"The last controller ID. Set it with `cntlid_min`."),
		lang.NewKey("max_io_queues", lang.Int(&s.MaxIOQueues, 1, target.MaxIOQueues),
			"The largest number of I/O queues of a host. Set it lower when hosts with many CPUs "+
				"take more connections than the target has memory for."),
		lang.NewKey("max_transfer", lang.Bytes(&s.MaxTransfer, target.MinTransfer,
			target.MaxTransfer, lang.PowerOfTwo),
			"The most data of one command, at most a quarter of `reactors.memory`; hosts split "+
				"larger ones. Set it lower when large commands delay small ones, higher when the "+
				"storage is faster with large ones."),
		limitsKey(&s.Limits, "All hosts together get no more than this; each that wants more gets "+
			"an equal part."),
		lang.NewKey("namespaces", lang.List(&s.Namespaces, 0, 1024,
			func(n *Namespace) lang.Value { return n.value(backends) }),
			"The disks that hosts see. There may be none, for instance before the first is there: "+
				"hosts connect, and notice one that is added.").Without("none"),
	}
}

// hostList is a list of the NQNs of hosts.
func hostList(p *[]string) lang.Value {
	return lang.List(p, 0, 4096, func(h *string) lang.Value {
		return lang.Unique(nqn(h, nil), "Delete one of the two.")
	})
}

func (n *Namespace) value(backends []Backend) lang.Value {
	n.Timeout, n.ANAGroup = 20*time.Second, 1
	storage := &n.Storage
	return &storageValue{p: &storage, backends: backends, common: []lang.Key{
		lang.NewKey("nsid", lang.Unique(lang.Int(&n.NSID, 1, target.MaxNSID),
			"Give each namespace of a subsystem its own nsid."),
			"Namespace ID, the 1 of `/dev/nvme0n1`.").Require("Add it."),
		lang.NewKey("uuid", id(&n.UUID),
			"Identifier of the namespace. Set it when hosts know the namespace by another one, "+
				"for instance after a migration.").
			Without("derived from NQN and NSID, if there is no other identifier").OrFile(),
		lang.NewKey("nguid", hexadecimal(n.NGUID[:]),
			"The same as an NGUID.").
			Without("derived from NQN and NSID, if there is no other identifier").OrFile(),
		lang.NewKey("eui64", hexadecimal(n.EUI64[:]), "The same as an EUI-64.").Without("none").
			OrFile(),
		lang.NewKey("read_only", lang.Bool(&n.ReadOnly),
			"Writes are refused. Set it when hosts must not write."),
		lang.NewKey("hosts", hostList(&n.Hosts),
			"The NQNs of the hosts of the subsystem that see the namespace. Set it when hosts "+
				"share a subsystem but not their disks.").Without("all"),
		lang.NewKey("io_timeout", lang.Duration(&n.Timeout, 0, time.Hour),
			"How long the storage may take for a command before it is given up and hosts try "+
				"again; the namespace is not ready until the storage answers. `0s` waits for "+
				"ever. Not for `ram` and `\"null\"`, which always answer. Set it higher when the "+
				"storage may be that slow; below the 30s of Linux hosts these keep their "+
				"connections."),
		lang.NewKey("ana_group", lang.Int(&n.ANAGroup, 1, ana.MaxGroups),
			"ANA group; `ana_states` of the listeners sets its states. Set it when the "+
				"listeners are not equally good for all namespaces."),
		limitsKey(&n.Limits, "All hosts together get no more than this; each host that wants more "+
			"gets an equal part."),
	}}
}
