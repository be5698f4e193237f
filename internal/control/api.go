package control

import "time"

// This file and api_observe.go are the interface: what requests and answers say. openapi.json is
// made of their comments.

// Status is the target as a whole.
type Status struct {
	// Version of the program.
	Version string `json:"version"`
	// PID is the process ID.
	PID int `json:"pid"`
	// Started is when the target was started.
	Started time.Time `json:"started"`
	// UptimeSeconds is how long ago that was.
	UptimeSeconds float64 `json:"uptime_seconds"`
	// Listeners is how many accept connections, WaitingListeners how many cannot yet,
	// DrainedListeners how many shall not.
	Listeners        int `json:"listeners"`
	WaitingListeners int `json:"waiting_listeners"`
	DrainedListeners int `json:"drained_listeners"`
	// Subsystems is how many are configured.
	Subsystems int `json:"subsystems"`
	// Namespaces is how many are served, PendingNamespaces how many wait for their storage.
	Namespaces        int `json:"namespaces"`
	PendingNamespaces int `json:"pending_namespaces"`
	// Pending are the first pending namespaces, with their reasons.
	Pending []PendingNamespace `json:"pending,omitempty"`
	// Controllers is the number of associations with hosts.
	Controllers int `json:"controllers"`
	// Connections is the number of queues.
	Connections int `json:"connections"`
	// Shares are what hosts and networks have of what is shared out, those first that are nearest
	// to their share: at most 16 of each transport. A host that has not proven its NQN counts for
	// the NQN and for its network.
	Shares []Share `json:"shares,omitempty"`
}

// Share is how much a host or a network has, and may have while others keep theirs.
type Share struct {
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Host is an NQN, empty for a network.
	Host string `json:"host,omitempty"`
	// Proven says that the host has proven its NQN, by TLS or authentication.
	Proven bool `json:"proven,omitempty"`
	// Network is an IPv4 address or an IPv6 /64.
	Network string `json:"network,omitempty"`
	// Connections is the number of queues, of MostConnections.
	Connections     int64 `json:"connections"`
	MostConnections int64 `json:"most_connections"`
	// QueueMemory is that of the queues in bytes, of MostQueueMemory.
	QueueMemory     int64 `json:"queue_memory"`
	MostQueueMemory int64 `json:"most_queue_memory"`
	// DataMemory is that of commands of both transports, on all reactors, in bytes, of
	// MostDataMemory.
	DataMemory     int64 `json:"data_memory"`
	MostDataMemory int64 `json:"most_data_memory"`
}

// PendingNamespace is a namespace that is not served yet.
type PendingNamespace struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it there.
	NSID uint32 `json:"nsid"`
	// Reason is why it is not served.
	Reason string `json:"reason"`
}

// Listener is an address where hosts connect, or what one is missing for.
type Listener struct {
	// Name is that of the configured listener, which may have many addresses.
	Name string `json:"name"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Address is the IP address and the port; without a port ID it is what is configured.
	Address string `json:"address"`
	// PortID is the NVMe port ID.
	PortID uint16 `json:"port_id,omitempty"`
	// State is up, waiting (the target tries again), failed (it cannot), draining (its connections
	// end) or drained (none is left).
	State string `json:"state"`
	// Reason is why it is not up.
	Reason string `json:"reason,omitempty"`
	// Connections is the number of queues that came through it.
	Connections int `json:"connections"`
}

// ListenerID says which listeners are meant.
type ListenerID struct {
	// Listener is an address, as in Listener or with the transport before it, or a port ID.
	Listener string `json:"listener,omitempty"`
	// All are meant, without Listener.
	All bool `json:"all,omitempty"`
}

// ANA is the asymmetric namespace access state of a group of namespaces at a listener.
type ANA struct {
	// Group is the ANA group.
	Group uint32 `json:"group"`
	// Listener is the name of the configured listener.
	Listener string `json:"listener"`
	// State is optimized, non-optimized, inaccessible, persistent-loss or change.
	State string `json:"state"`
	// Configured is the state in the configuration, in place of which State was set if they differ.
	Configured string `json:"configured"`
	// Namespaces are those in the group.
	Namespaces []NamespaceID `json:"namespaces"`
}

// ANASet says which state is to be set.
type ANASet struct {
	// Group is the ANA group.
	Group uint32 `json:"group"`
	// State is one of those of ANA, or configured: that of the configuration.
	State string `json:"state"`
	// Listener is its name, with or without the transport; without it all are meant.
	Listener string `json:"listener,omitempty"`
}

// ANAState is the state that a group is to have.
type ANAState struct {
	// State is one of those of ANA, or configured: that of the configuration.
	State string `json:"state"`
}

// Subsystem is an NVM subsystem.
type Subsystem struct {
	// NQN is its name.
	NQN string `json:"nqn"`
	// AllowAnyHost says that every host may connect, else those of Hosts.
	AllowAnyHost bool     `json:"allow_any_host"`
	Hosts        []string `json:"hosts"`
	// Security is what hosts need besides: none or auth.
	Security string `json:"security"`
	// Serial number.
	Serial string `json:"serial"`
	// Model number.
	Model string `json:"model"`
	// Namespaces is how many are served, PendingNamespaces how many wait for their storage.
	Namespaces        int `json:"namespaces"`
	PendingNamespaces int `json:"pending_namespaces"`
	// Controllers is the number of associations with hosts.
	Controllers int `json:"controllers"`
	// Limits are those of all hosts together.
	Limits *Limits `json:"limits,omitempty"`
	// Configured is missing in lists.
	Configured *Configured `json:"configured,omitempty"`
}

// Limits bound what hosts may do.
type Limits struct {
	// IOPS is commands per second that read or change blocks, 0 for no limit.
	IOPS int64 `json:"iops,omitempty"`
	// Bandwidth is bytes per second of reads and writes, 0 for no limit.
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// BurstSeconds is the time whose part of the limits may come at once after a pause.
	BurstSeconds float64 `json:"burst_seconds"`
	// Waits is how many commands have waited at these limits, WaitSeconds how long in all.
	Waits       uint64  `json:"waits"`
	WaitSeconds float64 `json:"wait_seconds"`
}

// Namespace is a namespace of a subsystem.
type Namespace struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it there.
	NSID uint32 `json:"nsid"`
	// State is ready, not ready (its storage does not answer), degraded (accepted writes may be
	// lost), paused (commands wait) or pending (its storage is not there, or what
	// hosts were promised of it cannot be read).
	State string `json:"state"`
	// Reason is why it is pending.
	Reason string `json:"reason,omitempty"`
	// Backend is the kind of its storage, Path where that is.
	Backend string `json:"backend"`
	Path    string `json:"path,omitempty"`
	// ConfiguredBytes is the least size that the configuration asks for, 0 if it asks for none.
	ConfiguredBytes int64 `json:"configured_bytes,omitempty"`
	// SizeBytes is 0 while it is pending, and so is everything that follows.
	SizeBytes      int64 `json:"size_bytes"`
	BlockSizeBytes int64 `json:"block_size_bytes"`
	// WriteProtected says that writes are refused.
	WriteProtected bool `json:"write_protected"`
	// Reads is the number of reads that succeeded since it was added, Writes that of writes.
	Reads  uint64 `json:"reads"`
	Writes uint64 `json:"writes"`
	// ReadBytes is what they read, WrittenBytes what they wrote.
	ReadBytes    uint64 `json:"read_bytes"`
	WrittenBytes uint64 `json:"written_bytes"`
	// BusySeconds is the time with I/O outstanding, summed over reactors.
	BusySeconds float64 `json:"busy_seconds"`
	// Errors is the number of operations that failed, by reason.
	Errors map[string]uint64 `json:"errors,omitempty"`
	// Timeouts is the number of commands that were given up.
	Timeouts uint64 `json:"timeouts"`
	// Limits are those of all hosts together.
	Limits *Limits `json:"limits,omitempty"`
	// Configured is missing in lists.
	Configured *Configured `json:"configured,omitempty"`
}

// Configured is where an object of the configuration comes from.
type Configured struct {
	// Path is that of requests for the object.
	Path string `json:"path"`
	// Managed says that a request has created it, so that requests can change and delete it.
	Managed bool `json:"managed"`
	// Place is where it stands: its file if Managed is true, else a line of the configuration.
	Place string `json:"place"`
	// Keys are those that the last PUT has given, without secrets. They are missing in lists and if
	// Managed is false.
	Keys Keys `json:"keys,omitempty"`
	// Secrets are the names of the secrets that a host has. They are missing in lists.
	Secrets []string `json:"secrets,omitempty"`
}

// HostEntry is a host as the configuration names it, in one subsystem or in all.
type HostEntry struct {
	// NQN of the host.
	NQN string `json:"nqn"`
	// Subsystems are the NQNs of the subsystems that name it.
	Subsystems []string `json:"subsystems"`
	// Controllers are its associations.
	Controllers []Host `json:"controllers"`
	// Configured is where the entry comes from.
	Configured *Configured `json:"configured,omitempty"`
}

// HostKey is a secret of a host.
type HostKey struct {
	// Key is the secret, in its interchange format.
	Key string `json:"key"`
	// OldKeysUntil makes the secret before the old one, which counts as well until this date or
	// time. Without it the secret before ends at once. Repeated, the request changes nothing.
	OldKeysUntil string `json:"old_keys_until,omitempty"`
}

// ListenerEntry is a listener as the configuration names it.
type ListenerEntry struct {
	// Name is as in Listener.
	Name string `json:"name"`
	// Addresses are the addresses that it has, or lacks, with the reason.
	Addresses []Listener `json:"addresses"`
	// Configured is where it comes from.
	Configured *Configured `json:"configured,omitempty"`
}

// Referral is another discovery service that hosts are told of.
type Referral struct {
	// Name is the transport and the address with the port, and the NQN if it is not the well-known
	// one.
	Name string `json:"name"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Address is the IP address and the port.
	Address string `json:"address"`
	// NQN of the discovery service.
	NQN string `json:"nqn"`
	// Hosts are the hosts that are told of it; none: all.
	Hosts []string `json:"hosts"`
	// Configured is missing in lists.
	Configured *Configured `json:"configured,omitempty"`
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
	Remote string `json:"remote"`
	// Queues is the number of its connections, the admin queue included.
	Queues int `json:"queues"`
	// Ready says that the host has enabled the controller.
	Ready bool `json:"ready"`
	// Discovery says that it is a discovery controller.
	Discovery bool `json:"discovery"`
	// Limits are those of the host, in all subsystems together.
	Limits *Limits `json:"limits,omitempty"`
}

// Connection is a queue.
type Connection struct {
	// Host and Subsystem are NQNs, empty before a successful Connect command, and so are CNTLID,
	// QID and Depth.
	Host      string `json:"host"`
	Subsystem string `json:"subsystem"`
	// CNTLID is the controller ID.
	CNTLID uint16 `json:"cntlid"`
	// QID is the queue ID, 0 for the admin queue.
	QID uint16 `json:"qid"`
	// Depth is the number of entries.
	Depth int `json:"depth"`
	// InFlight is the number of commands that are executed.
	InFlight int `json:"in_flight"`
	// Reactor is the index of the reactor that serves it.
	Reactor int `json:"reactor"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Local is the address of the target, Remote that of the host.
	Local  string `json:"local"`
	Remote string `json:"remote"`
	// PortID is that of the listener.
	PortID uint16 `json:"port_id"`
	// AgeSeconds is how long the connection exists.
	AgeSeconds float64 `json:"age_seconds"`
	// KeepAliveTimeoutSeconds is that of the controller, 0 for none, KeepAliveLeftSeconds what is
	// left of it if the host sends nothing more.
	KeepAliveTimeoutSeconds float64 `json:"keep_alive_timeout_seconds"`
	KeepAliveLeftSeconds    float64 `json:"keep_alive_left_seconds"`
	// KeepAliveMarginSeconds is the least that was left of it in the last one or two minutes.
	KeepAliveMarginSeconds float64 `json:"keep_alive_margin_seconds"`
	// RTTSeconds is the round-trip time of late, Retransmits how many packets the target has sent
	// again, both of TCP; 0 for rdma.
	RTTSeconds  float64 `json:"rtt_seconds"`
	Retransmits uint64  `json:"retransmits"`
	// TLS is the cipher suite, empty if the connection is not encrypted.
	TLS string `json:"tls"`
	// HeaderDigest and DataDigest say that the connection has them.
	HeaderDigest bool `json:"header_digest"`
	DataDigest   bool `json:"data_digest"`
	// Commands is the number of commands that were received.
	Commands uint64 `json:"commands"`
	// NearlyFull is how many of them found at least three quarters of Depth in use.
	NearlyFull uint64 `json:"nearly_full"`
	// ReadBytes is the data that commands read which succeeded, WrittenBytes what they wrote.
	ReadBytes    uint64 `json:"read_bytes"`
	WrittenBytes uint64 `json:"written_bytes"`
}

// Reactor is a thread that serves connections.
type Reactor struct {
	// Index is the number of the reactor.
	Index int `json:"index"`
	// CPU is where it runs, -1 for any.
	CPU int `json:"cpu"`
	// AsleepSeconds is how long it has slept since its start; it polls for the rest of the time.
	AsleepSeconds float64 `json:"asleep_seconds"`
	// Polls is how often it has looked for work, EmptyPolls how often there was none.
	Polls      uint64 `json:"polls"`
	EmptyPolls uint64 `json:"empty_polls"`
	// MemoryBytes is its data memory, MemoryUsedBytes what is in use.
	MemoryBytes     int64 `json:"memory_bytes"`
	MemoryUsedBytes int64 `json:"memory_used_bytes"`
	// WaitingCommands is the number of commands that wait for data memory.
	WaitingCommands int `json:"waiting_commands"`
}

// Disk is a block device of the machine.
type Disk struct {
	// Name is as in /dev.
	Name string `json:"name"`
	// Path is that below /dev/disk/by-id which stays the same, for the configuration; "" if there
	// is none.
	Path string `json:"path,omitempty"`
	// Bus is what it is attached to: nvme, sata, sas, scsi, usb, virtio, mmc or virtual.
	Bus string `json:"bus"`
	// Model and Serial are what it reports.
	Model  string `json:"model"`
	Serial string `json:"serial"`
	// SizeBytes is its size, BlockSizeBytes that of a logical block.
	SizeBytes      int64 `json:"size_bytes"`
	BlockSizeBytes int   `json:"block_size_bytes"`
	// Rotational says that it is a hard disk.
	Rotational bool `json:"rotational"`
	// ReadOnly says that it cannot be written.
	ReadOnly bool `json:"read_only"`
	// Partitions are their names.
	Partitions []string `json:"partitions"`
	// Uses says who uses the disk or a partition: mounts, other devices, processes, and namespaces
	// of the target ("namespace 1 of NQN").
	Uses []string `json:"uses"`
	// NotExportable is why it cannot be exported as a whole.
	NotExportable string `json:"not_exportable,omitempty"`
	// Health is what the drive reports of itself.
	Health DiskHealth `json:"health"`
}

// DiskHealth is what a drive reports of itself.
type DiskHealth struct {
	// State is good, warning, failing or unknown.
	State string `json:"state"`
	// Notes say what is wrong, or why the health is unknown.
	Notes []string `json:"notes"`
	// Celsius is the temperature, 0 if unknown.
	Celsius int `json:"celsius"`
	// PowerOnHours is the time under power, UsedPercent the endurance that is used up; -1 is
	// unknown.
	PowerOnHours int64 `json:"power_on_hours"`
	UsedPercent  int   `json:"used_percent"`
}

// Plan is what separates the running target from its configuration file.
type Plan struct {
	// Changes are in the order in which they are carried out.
	Changes []Change `json:"changes"`
	// Warnings are those about the configuration and this machine.
	Warnings []string `json:"warnings,omitempty"`
}

// Change is one step.
type Change struct {
	// Text says what changes.
	Text string `json:"text"`
	// NeedsRestart says that a reload does not do it.
	NeedsRestart bool `json:"needs_restart"`
	// Affected are the connected hosts that it concerns, in the order of their NQNs. Only the
	// answers to plan and reload have them.
	Affected []Affected `json:"affected,omitempty"`
}

// The values of Affected.Effect.
const (
	// Disconnects: associations of the host end.
	Disconnects = "disconnects"
	// Loses: the host is connected and loses the namespace.
	Loses = "loses"
	// Waits: commands of the host wait until the storage has been opened again.
	Waits = "waits"
)

// Affected is a host that a change concerns.
type Affected struct {
	// Host is its NQN.
	Host string `json:"host"`
	// Effect is disconnects, loses or waits.
	Effect string `json:"effect"`
	// Controllers is how many of its associations are concerned, and InFlight how many commands
	// were executed on them when the target looked.
	Controllers int `json:"controllers"`
	InFlight    int `json:"in_flight"`
}

// Disconnect says whose associations end.
type Disconnect struct {
	// Host is the NQN of the host.
	Host string `json:"host"`
	// Subsystem is the NQN of the subsystem; without it all are meant.
	Subsystem string `json:"subsystem,omitempty"`
}

// Disconnected is what was done.
type Disconnected struct {
	// Controllers is the number of associations that were ended.
	Controllers int `json:"controllers"`
}

// NamespaceID says which namespace is meant.
type NamespaceID struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it there.
	NSID uint32 `json:"nsid"`
}

// Keys are those of the object in the configuration file (docs/configuration.md), less its name.
// The object then has these and defaults: what it had before is not kept, but for the secrets of a
// host. A host of a subsystem has none.
type Keys map[string]any

// Object is what a request creates, changes, shows or deletes: a subsystem, with NSID a namespace
// of it and with Host a host that may connect to it; a host in all subsystems, with Key a secret of
// it; a listener; or a referral. It stands in the path of the request.
type Object struct {
	// Subsystem is the NQN of the subsystem.
	Subsystem string `json:"subsystem,omitempty"`
	// NSID is that of a namespace of it.
	NSID uint32 `json:"nsid,omitempty"`
	// Host is the NQN of a host.
	Host string `json:"host,omitempty"`
	// Key is that of a secret of the host in the configuration file: dhchap_key.
	Key string `json:"key,omitempty"`
	// Listener is its name in the configuration file, or transport, address and port as in
	// "tcp 10.0.0.1:4420" or "rdma [fd00::1]:4420".
	Listener string `json:"listener,omitempty"`
	// Referral is as in Referral.Name.
	Referral string `json:"referral,omitempty"`
}

// Resize says what size a namespace shall have.
type Resize struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it there.
	NSID uint32 `json:"nsid"`
	// Size is a number of bytes, or has a unit: 20GiB.
	Size string `json:"size"`
	// Shrink allows a smaller size than at present: what is beyond is lost.
	Shrink bool `json:"shrink,omitempty"`
}

// Problem is an error (RFC 9457).
type Problem struct {
	// Title is the meaning of Status.
	Title string `json:"title"`
	// Status is that of the HTTP response.
	Status int `json:"status"`
	// Detail is what is wrong.
	Detail string `json:"detail"`
	// Place is where: a file with its line and column, a key, or a part of the request.
	Place string `json:"place,omitempty"`
	// Hint says how to fix it.
	Hint string `json:"hint,omitempty"`
	// More problems that were found.
	More []Problem `json:"more,omitempty"`
}
