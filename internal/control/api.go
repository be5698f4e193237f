package control

import (
	"time"
)

// This file is the interface: what requests and answers say. openapi.json is made of its comments.

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
	// Controllers is the number of associations with hosts.
	Controllers int `json:"controllers"`
	// Connections is the number of queues.
	Connections int `json:"connections"`
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
	// lost), paused (commands wait) or pending (its storage is not there).
	State string `json:"state"`
	// Backend is the kind of its storage, Path where that is.
	Backend string `json:"backend"`
	Path    string `json:"path,omitempty"`
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

// Latency is how long the commands of a host for a namespace took, since the host first used it.
type Latency struct {
	// Host is the NQN of the host; it is empty for hosts that are not counted apart.
	Host string `json:"host"`
	// Subsystem is the NQN of the subsystem, NSID identifies the namespace there.
	Subsystem string `json:"subsystem"`
	NSID      uint32 `json:"nsid"`
	// Operation is read, write or other.
	Operation string `json:"operation"`
	// IOs is the number of commands, Errors that of those which failed, Bytes the data of the
	// others.
	IOs    uint64 `json:"ios"`
	Errors uint64 `json:"errors"`
	Bytes  uint64 `json:"bytes"`
	// Dominant is the stage in which most of the time was spent.
	Dominant string `json:"dominant"`
	// Total is the time from the arrival of a command until its response has left, Stages its
	// parts.
	Total  LatencyStage   `json:"total"`
	Stages []LatencyStage `json:"stages"`
	// Buckets is the histogram of Total, without empty buckets: differences of two answers have the
	// quantiles of the time between.
	Buckets []LatencyBucket `json:"buckets"`
}

// LatencyBucket is how many commands took about as long.
type LatencyBucket struct {
	// NS is the middle of the bucket in nanoseconds, at most 3.2 % off.
	NS int64 `json:"ns"`
	// Count is how many commands.
	Count uint64 `json:"n"`
}

// LatencyStage is how long commands were in a stage.
type LatencyStage struct {
	// Stage is wait (for memory or at a limit), host_data (the data of writes comes from the host),
	// backend, response (it leaves, with the data of reads) or total.
	Stage string `json:"stage"`
	// Share is the part of the total time, 0 to 1.
	Share float64 `json:"share"`
	// MeanSeconds is the mean; P50Seconds is what half of the commands did not exceed, and so on.
	MeanSeconds  float64 `json:"mean_seconds"`
	P50Seconds   float64 `json:"p50_seconds"`
	P99Seconds   float64 `json:"p99_seconds"`
	P999Seconds  float64 `json:"p99.9_seconds"`
	P9999Seconds float64 `json:"p99.99_seconds"`
	MaxSeconds   float64 `json:"max_seconds"`
	// SlowestSeconds is what the command that took longest spent in this stage.
	SlowestSeconds float64 `json:"slowest_seconds"`
}

// TraceQueue is what the flight recorder has of a queue: a line of the answer to GET /v1/trace.
type TraceQueue struct {
	// Time is when this was copied.
	Time time.Time `json:"time"`
	// Reason is why it was kept: what has failed. It is missing if it is no dump.
	Reason string `json:"reason,omitempty"`
	// ID is that of the connection, unique until the target ends.
	ID uint64 `json:"id"`
	// Host and Subsystem are NQNs.
	Host      string `json:"host"`
	Subsystem string `json:"subsystem"`
	// CNTLID is the controller ID.
	CNTLID uint16 `json:"cntlid"`
	// QID is the queue ID, 0 for the admin queue.
	QID uint16 `json:"qid"`
	// Reactor is the index of the reactor that serves it.
	Reactor int `json:"reactor"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Local is the address of the target, Remote that of the host.
	Local  string `json:"local"`
	Remote string `json:"remote"`
	// Missed is how many completed commands before these are not known any more.
	Missed uint64 `json:"missed"`
	// Commands are the last ones that were completed, and those that are not.
	Commands []TraceCommand `json:"commands"`
}

// TraceCommand is a command, without its data. Of Fabrics commands nothing but the type is known.
type TraceCommand struct {
	// Number counts the completed commands of the queue; it is missing for others.
	Number uint64 `json:"number,omitempty"`
	// State is waiting (for memory, at a limit or for data from the host), executing, responding
	// (it is completed, and the response has not left), done, or abandoned (the queue ended first).
	State string `json:"state"`
	// Start is when it arrived.
	Start time.Time `json:"start"`
	// Command is its name, Opcode its opcode, FabricsType the type of a Fabrics command.
	Command     string `json:"command"`
	Opcode      uint16 `json:"opcode"`
	FabricsType uint16 `json:"fabrics_type,omitempty"`
	// CID is the command identifier.
	CID uint16 `json:"cid"`
	// NSID is the namespace.
	NSID uint32 `json:"nsid,omitempty"`
	// LBA is the first of the blocks of a command that has Blocks of them, FUA force unit access.
	LBA    uint64 `json:"lba,omitempty"`
	Blocks int    `json:"blocks,omitempty"`
	FUA    bool   `json:"fua,omitempty"`
	// Fused is 1 for the first and 2 for the second command of a fused operation.
	Fused uint16 `json:"fused,omitempty"`
	// CDW10, CDW11 and CDW12 (its lower half) are of commands without Blocks.
	CDW10 uint32 `json:"cdw10,omitempty"`
	CDW11 uint32 `json:"cdw11,omitempty"`
	CDW12 uint16 `json:"cdw12,omitempty"`
	// Length is the number of bytes of data.
	Length uint32 `json:"length"`
	// Status is the status of a completed command as text, StatusCode as a number: DNR, M, SCT and
	// SC.
	Status     string `json:"status,omitempty"`
	StatusCode uint16 `json:"status_code"`
	// WaitSeconds, HostDataSeconds, BackendSeconds and ResponseSeconds are how long it was in each
	// stage, as in Latency: what is known so far, all of it in the state done.
	WaitSeconds     float64 `json:"wait_seconds"`
	HostDataSeconds float64 `json:"host_data_seconds"`
	BackendSeconds  float64 `json:"backend_seconds"`
	ResponseSeconds float64 `json:"response_seconds"`
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

// Refusal is what a peer was refused, or why its connection was ended.
type Refusal struct {
	// First and Last are when it happened, Count how often.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count uint64    `json:"count"`
	// Remote is the address of the peer, with the port of the last time.
	Remote string `json:"remote"`
	// Message is what happened.
	Message string `json:"message"`
	// Expected is what a field must be, Received what the peer has sent.
	Expected string `json:"expected,omitempty"`
	Received string `json:"received,omitempty"`
	// Hint says what an operator can do.
	Hint string `json:"hint,omitempty"`
	// Attributes are the other details, as in the log.
	Attributes []Attribute `json:"attributes"`
}

// Attribute is a detail of a line of the log.
type Attribute struct {
	// Key is one of those in docs/glossary.md.
	Key string `json:"key"`
	// Value as text.
	Value string `json:"value"`
}

// Event is a line of the log.
type Event struct {
	// ID counts the events since the start; a gap says that events are no longer known.
	ID uint64 `json:"id"`
	// Time is when it happened.
	Time time.Time `json:"time"`
	// Level is INFO, WARN or ERROR.
	Level string `json:"level"`
	// Message is what happened.
	Message string `json:"message"`
	// Attributes are the details, as in the log.
	Attributes []Attribute `json:"attributes"`
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

// Keys are those of a subsystem or a namespace in the configuration file (docs/configuration.md),
// less its name. The object then has these and defaults: what it had before is not kept. A host has
// none.
type Keys map[string]any

// Object is what a request creates or deletes: a host that may connect to a subsystem, a namespace,
// or, without both, a subsystem. It stands in the path of the request.
type Object struct {
	// Subsystem is the NQN of the subsystem.
	Subsystem string `json:"subsystem"`
	// NSID is that of a namespace of it.
	NSID uint32 `json:"nsid,omitempty"`
	// Host is the NQN of a host.
	Host string `json:"host,omitempty"`
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
