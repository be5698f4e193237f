package observed

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Status is the target as a whole.
type Status struct {
	// Version of the program.
	Version string `json:"version"`
	// PID is the process ID.
	PID int `json:"pid"`
	// Started is the time at which the target was started.
	Started time.Time `json:"started"`
	// UptimeSeconds is the time since Started.
	UptimeSeconds float64 `json:"uptime_seconds"`
	// Listeners is the number of listeners that accept connections, WaitingListeners the number of
	// listeners that cannot yet, DrainedListeners the number of listeners that must not.
	Listeners        int `json:"listeners"`
	WaitingListeners int `json:"waiting_listeners"`
	DrainedListeners int `json:"drained_listeners"`
	// RDMAStacks are the RDMA stacks that serve listeners: device, soft (RoCEv2), soft-iwarp.
	RDMAStacks []string `json:"rdma_stacks,omitempty"`
	// Subsystems is the number of configured subsystems.
	Subsystems int `json:"subsystems"`
	// Namespaces counts namespaces in service, PendingNamespaces namespaces without storage.
	Namespaces        int `json:"namespaces"`
	PendingNamespaces int `json:"pending_namespaces"`
	// Pending are the first pending namespaces, with their reasons.
	Pending []PendingNamespace `json:"pending,omitempty"`
	// Controllers is the number of associations with hosts.
	Controllers int `json:"controllers"`
	// Connections is the number of queues.
	Connections int `json:"connections"`
	// Shares are the uses of shared resources by hosts and networks, nearest to a limit first, at
	// most 16 of each transport. A host without proof counts for its NQN and its network.
	Shares []Share `json:"shares,omitempty"`
}

// Share is the amount that a host or a network uses, and may use while others keep theirs.
type Share struct {
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Host is an NQN, empty for a network.
	Host string `json:"host,omitempty"`
	// Proven: the host has proven its NQN, by TLS or authentication.
	Proven bool `json:"proven,omitempty"`
	// Network is an IPv4 address or an IPv6 /64.
	Network string `json:"network,omitempty"`
	// Connections is the number of queues, MostConnections its limit for now.
	Connections     int64 `json:"connections"`
	MostConnections int64 `json:"most_connections"`
	// QueueMemory is the memory of the queues in bytes, MostQueueMemory its limit for now.
	QueueMemory     int64 `json:"queue_memory"`
	MostQueueMemory int64 `json:"most_queue_memory"`
	// DataMemory is the memory of its commands in bytes, MostDataMemory its limit for now.
	DataMemory     int64 `json:"data_memory"`
	MostDataMemory int64 `json:"most_data_memory"`
}

// PendingNamespace is a namespace that is not in service yet.
type PendingNamespace struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it in the subsystem.
	NSID uint32 `json:"nsid"`
	// Reason is the reason why it is not in service.
	Reason string `json:"reason"`
}

// Listener is an address where hosts connect, or a configured listener without an address.
type Listener struct {
	// Name is the name of the configured listener, which may have many addresses.
	Name string `json:"name"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Address is the IP address and the port; without a port ID it is the configured address.
	Address string `json:"address"`
	// PortID is the NVMe port ID.
	PortID uint16 `json:"port_id,omitempty"`
	// Stack is the RDMA stack that serves it: device, soft (RoCEv2) or soft-iwarp.
	Stack string `json:"stack,omitempty"`
	// State is up, waiting (for another try), failed, draining (connections end) or drained.
	State string `json:"state"`
	// Reason is the reason why it is not up.
	Reason string `json:"reason,omitempty"`
	// Connections is the number of queues that were connected through it.
	Connections int `json:"connections"`
}

// Subsystem is an NVM subsystem.
type Subsystem struct {
	// NQN is its name.
	NQN string `json:"nqn"`
	// AllowAnyHost: every host may connect.
	AllowAnyHost bool `json:"allow_any_host"`
	// Hosts are the NQNs of the hosts that may connect otherwise.
	Hosts []string `json:"hosts"`
	// Security is required of allowed hosts: none, auth, tls or auth+tls.
	Security string `json:"security"`
	// Serial number.
	Serial string `json:"serial"`
	// Model number.
	Model string `json:"model"`
	// Namespaces counts namespaces in service, PendingNamespaces namespaces without storage.
	Namespaces        int `json:"namespaces"`
	PendingNamespaces int `json:"pending_namespaces"`
	// Controllers is the number of associations with hosts.
	Controllers int `json:"controllers"`
	// Limits are the limits of all hosts together.
	Limits *Limits `json:"limits,omitempty"`
	// Configured is missing in lists.
	Configured *Configured `json:"configured,omitempty"`
}

// Disk is a block device of the machine.
type Disk struct {
	// Name is the name in /dev.
	Name string `json:"name"`
	// Path is the stable path below /dev/disk/by-id, for the configuration; "" if there is none.
	Path string `json:"path,omitempty"`
	// Bus is the bus that it is attached to: nvme, sata, sas, scsi, usb, virtio, mmc or virtual.
	Bus string `json:"bus"`
	// Model and Serial are as reported by the disk.
	Model  string `json:"model"`
	Serial string `json:"serial"`
	// SizeBytes is its size, BlockSizeBytes the size of a logical block.
	SizeBytes      int64 `json:"size_bytes"`
	BlockSizeBytes int   `json:"block_size_bytes"`
	// Rotational: it is a hard disk.
	Rotational bool `json:"rotational"`
	// ReadOnly: it cannot be written.
	ReadOnly bool `json:"read_only"`
	// Partitions are the names of its partitions.
	Partitions []string `json:"partitions"`
	// Uses lists the users of the disk or of its partitions: mounts, other devices, processes, and
	// namespaces of the target ("namespace 1 of NQN").
	Uses []string `json:"uses"`
	// NotExportable is the reason why it cannot be exported as a whole.
	NotExportable string `json:"not_exportable,omitempty"`
	// Health is the health that the drive reports.
	Health DiskHealth `json:"health"`
}

// IsDrive reports whether the disk may be hardware with health data. Drives behind some adapters
// are "scsi", as are disks of virtual machines and arrays, which have none.
func (d Disk) IsDrive() bool {
	return slices.Contains([]string{"nvme", "sata", "sas", "scsi"}, d.Bus)
}

// DiskHealth is the health that a drive reports.
type DiskHealth struct {
	// State is good, warning, failing or unknown.
	State string `json:"state"`
	// Notes describe problems, or the reason for an unknown health.
	Notes []string `json:"notes"`
	// Celsius is the temperature, 0 if unknown.
	Celsius int `json:"celsius"`
	// PowerOnHours is the power-on time or -1, UsedPercent the used endurance or -1 if unknown.
	PowerOnHours int64 `json:"power_on_hours"`
	UsedPercent  int   `json:"used_percent"`
}

// Namespace is a namespace of a subsystem. While it is pending, its sizes and counts are 0.
type Namespace struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it in the subsystem.
	NSID uint32 `json:"nsid"`
	// State is ready, not ready (its storage does not answer), degraded (accepted writes may be
	// lost), paused (commands wait), standby (another gateway may serve it) or pending (without
	// storage, or promises unread).
	State string `json:"state"`
	// Reason is the reason why it is pending.
	Reason string `json:"reason,omitempty"`
	// Backend is the kind of its storage, Path the place of the storage.
	Backend string `json:"backend"`
	Path    string `json:"path,omitempty"`
	// ConfiguredBytes is the minimum size in the configuration, 0 if there is none.
	ConfiguredBytes int64 `json:"configured_bytes,omitempty"`
	// SizeBytes is its size, BlockSizeBytes the size of a logical block.
	SizeBytes      int64 `json:"size_bytes"`
	BlockSizeBytes int64 `json:"block_size_bytes"`
	// WriteProtected: writes are refused.
	WriteProtected bool `json:"write_protected"`
	// Reads and Writes are the numbers of successful ones since it was added.
	Reads  uint64 `json:"reads"`
	Writes uint64 `json:"writes"`
	// ReadBytes is the data of these reads, WrittenBytes the data of these writes.
	ReadBytes    uint64 `json:"read_bytes"`
	WrittenBytes uint64 `json:"written_bytes"`
	// BusySeconds is the time with I/O outstanding, summed over reactors.
	BusySeconds float64 `json:"busy_seconds"`
	// Errors is the number of failed operations by reason: offline, aborted, io, no_space,
	// read_only, out_of_range, unsupported or other.
	Errors map[string]uint64 `json:"errors,omitempty"`
	// Timeouts is the number of commands that were given up.
	Timeouts uint64 `json:"timeouts"`
	// Limits are the limits of all hosts together.
	Limits *Limits `json:"limits,omitempty"`
	// Configured is missing in lists.
	Configured *Configured `json:"configured,omitempty"`

	// The following is not in answers. Ready is false while the storage is offline or does not
	// answer. Degraded: accepted writes may be lost.
	Ready    bool `json:"-"`
	Degraded bool `json:"-"`
	// VolatileCache: completed writes may be lost with the power until a flush.
	VolatileCache bool `json:"-"`
	// ANAGroup is its ANA group.
	ANAGroup uint32 `json:"-"`
	// Flushes, WriteZeroes and Discards are the numbers of these operations that succeeded, one for
	// each range of a Dataset Management.
	Flushes     uint64 `json:"-"`
	WriteZeroes uint64 `json:"-"`
	Discards    uint64 `json:"-"`
	// Orphans is the number of IOs of commands given up that the device still has, with their
	// memory. Returns is the number of times that storage became ready again.
	Orphans int    `json:"-"`
	Returns uint64 `json:"-"`
	// Allocated is the space taken by the content of a thin namespace, Free the space left in its
	// storage, both in bytes; -1 if unknown, or not thin.
	Allocated int64 `json:"-"`
	Free      int64 `json:"-"`
	// Health is log 02h as a host would have got it when the drive last answered, less the entries
	// of log 01h, which each controller has of its own.
	Health *nvme.SMARTLog `json:"-"`
	// Drive is the hardware that holds the namespace; nil if there is none of its own.
	Drive *Drive `json:"-"`
}

// Limits bound the I/O of hosts.
type Limits struct {
	// IOPS is the limit of commands per second that read or change blocks, 0 for no limit.
	IOPS int64 `json:"iops,omitempty"`
	// Bandwidth is the limit of bytes per second of reads and writes, 0 for no limit.
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// BurstSeconds is the burst allowed after a pause, as a time at the limits.
	BurstSeconds float64 `json:"burst_seconds"`
	// Waits counts the commands that waited at these limits, WaitSeconds their total wait.
	Waits       uint64  `json:"waits"`
	WaitSeconds float64 `json:"wait_seconds"`
}

// Host is one association of a host with a subsystem: a controller.
type Host struct {
	// NQN of the host.
	NQN string `json:"nqn"`
	// ID is the host identifier.
	ID string `json:"id"`
	// Subsystem is the NQN of the subsystem.
	Subsystem string `json:"subsystem"`
	// CNTLID is the controller ID.
	CNTLID uint16 `json:"cntlid"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Remote is the address of the host.
	Remote netip.AddrPort `json:"remote"`
	// Queues is the number of its connections, the admin queue included.
	Queues int `json:"queues"`
	// Ready: the host has enabled the controller.
	Ready bool `json:"ready"`
	// Discovery: it is a discovery controller.
	Discovery bool `json:"discovery"`
	// Limits are the limits of the host, in all subsystems together.
	Limits *Limits `json:"limits,omitempty"`
}

// Connection is a queue.
type Connection struct {
	// Host and Subsystem are NQNs, empty before a successful Connect command.
	Host      string `json:"host"`
	Subsystem string `json:"subsystem"`
	// CNTLID is the controller ID.
	CNTLID uint16 `json:"cntlid"`
	// QID is the queue ID, 0 for the admin queue.
	QID uint16 `json:"qid"`
	// Depth is the number of entries.
	Depth int `json:"depth"`
	// InFlight is the number of commands being executed.
	InFlight int `json:"in_flight"`
	// Reactor is the index of the reactor that serves it.
	Reactor int `json:"reactor"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Local is the address of the target, Remote the address of the host.
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// PortID is the port ID of the listener.
	PortID uint16 `json:"port_id"`
	// AgeSeconds is the age of the connection.
	AgeSeconds float64 `json:"age_seconds"`
	// KeepAliveTimeoutSeconds is the timeout, 0 for none, KeepAliveLeftSeconds the time left.
	KeepAliveTimeoutSeconds float64 `json:"keep_alive_timeout_seconds"`
	KeepAliveLeftSeconds    float64 `json:"keep_alive_left_seconds"`
	// KeepAliveMarginSeconds is the least time left in the last one or two minutes.
	KeepAliveMarginSeconds float64 `json:"keep_alive_margin_seconds"`
	// RTTSeconds is the recent round-trip time, Retransmits the packets sent again, by TCP.
	RTTSeconds  float64 `json:"rtt_seconds"`
	Retransmits uint64  `json:"retransmits"`
	// TLS is the cipher suite, empty if the connection is not encrypted.
	TLS string `json:"tls"`
	// HeaderDigest and DataDigest: the connection uses these digests.
	HeaderDigest bool `json:"header_digest"`
	DataDigest   bool `json:"data_digest"`
	// Commands is the number of commands received.
	Commands uint64 `json:"commands"`
	// NearlyFull is the number of commands that found at least three quarters of Depth in use.
	NearlyFull uint64 `json:"nearly_full"`
	// ReadBytes is the data of successful reads, WrittenBytes the data of successful writes.
	ReadBytes    uint64 `json:"read_bytes"`
	WrittenBytes uint64 `json:"written_bytes"`

	// The following is not in answers. Discovery: the subsystem is a discovery service.
	Discovery bool `json:"-"`
	// Authenticated: the host has authenticated on this queue, or with the PSK that secure channel
	// concatenation generated from an authentication.
	Authenticated bool `json:"-"`
	// LinkKnown: RTTSeconds and Retransmits are known.
	LinkKnown bool `json:"-"`
}

// Reactor is a thread that serves connections.
type Reactor struct {
	// Index is the number of the reactor.
	Index int `json:"index"`
	// CPU is the CPU on which it runs, -1 for any.
	CPU int `json:"cpu"`
	// AsleepSeconds is the time that it has slept since its start. Otherwise it polls.
	AsleepSeconds float64 `json:"asleep_seconds"`
	// Polls counts its looks for work, EmptyPolls the looks that found none.
	Polls      uint64 `json:"polls"`
	EmptyPolls uint64 `json:"empty_polls"`
	// MemoryBytes is its data memory, MemoryUsedBytes the part in use.
	MemoryBytes     int64 `json:"memory_bytes"`
	MemoryUsedBytes int64 `json:"memory_used_bytes"`
	// WaitingCommands is the number of commands that wait for data memory.
	WaitingCommands int `json:"waiting_commands"`

	// The following is not in answers. BusySeconds is the time with work, PollingSeconds without.
	BusySeconds    float64 `json:"-"`
	PollingSeconds float64 `json:"-"`
	// Steps counts the work that the reactor found, by transport or "storage".
	Steps map[string]uint64 `json:"-"`
	// OrphanedBytes is data memory that storage may still use although its commands were given up.
	OrphanedBytes int64 `json:"-"`
	// Timers is the number of timers that have neither run nor been stopped.
	Timers int `json:"-"`
}

// Configured is the origin of an object of the configuration.
type Configured struct {
	// Path is the path of requests for the object.
	Path string `json:"path"`
	// Managed: a request has created it, so that requests can change and delete it.
	Managed bool `json:"managed"`
	// Place is its file if Managed is true, else its line of the configuration.
	Place string `json:"place"`
	// Keys are the keys of the last PUT, without secrets, if Managed; lists do not have them.
	Keys Keys `json:"keys,omitempty"`
	// Secrets are the names of the secrets of a host. They are missing in lists.
	Secrets []string `json:"secrets,omitempty"`
}

// Keys are the keys of the object in the configuration file (docs/configuration.md), without its
// name, hosts and namespaces. The object then has these and defaults. Earlier keys are not kept,
// except the secrets of a host. A host of a subsystem has no keys.
type Keys map[string]any
