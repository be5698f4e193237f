package control

import (
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// This file and package observed are the interface: the content of requests and answers.
// openapi.json is generated from their comments.

// Status is the target as a whole.
type Status struct {
	// Version of the program.
	Version string `json:"version"`
	// PID is the process ID.
	PID int `json:"pid"`
	// Started is the time at which the target was started.
	Started time.Time `json:"started"`
	// UptimeSeconds is the time since then.
	UptimeSeconds float64 `json:"uptime_seconds"`
	// Listeners is the number of listeners that accept connections, WaitingListeners the number
	// that cannot yet, DrainedListeners the number that must not.
	Listeners        int `json:"listeners"`
	WaitingListeners int `json:"waiting_listeners"`
	DrainedListeners int `json:"drained_listeners"`
	// Subsystems is the number of configured subsystems.
	Subsystems int `json:"subsystems"`
	// Namespaces is the number of namespaces in service, PendingNamespaces the number that wait for
	// their storage.
	Namespaces        int `json:"namespaces"`
	PendingNamespaces int `json:"pending_namespaces"`
	// Pending are the first pending namespaces, with their reasons.
	Pending []PendingNamespace `json:"pending,omitempty"`
	// Controllers is the number of associations with hosts.
	Controllers int `json:"controllers"`
	// Connections is the number of queues.
	Connections int `json:"connections"`
	// Shares are the uses of shared resources by hosts and networks, nearest to their limit first:
	// at most 16 of each transport. A host that has not proven its NQN counts for the NQN and for
	// its network.
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
	// Connections is the number of queues, of MostConnections.
	Connections     int64 `json:"connections"`
	MostConnections int64 `json:"most_connections"`
	// QueueMemory is the memory of the queues in bytes, of MostQueueMemory.
	QueueMemory     int64 `json:"queue_memory"`
	MostQueueMemory int64 `json:"most_queue_memory"`
	// DataMemory is the memory of commands of both transports, on all reactors, in bytes, of
	// MostDataMemory.
	DataMemory     int64 `json:"data_memory"`
	MostDataMemory int64 `json:"most_data_memory"`
}

// PendingNamespace is a namespace that is not in service yet.
type PendingNamespace struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it there.
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
	// State is up, waiting (the target tries again), failed (it cannot), draining (its connections
	// end) or drained (none is left).
	State string `json:"state"`
	// Reason is the reason why it is not up.
	Reason string `json:"reason,omitempty"`
	// Connections is the number of queues that were connected through it.
	Connections int `json:"connections"`
}

// ListenerID selects listeners.
type ListenerID struct {
	// Listener is an address, as in Listener or preceded by the transport, or a port ID.
	Listener string `json:"listener,omitempty"`
	// All selects all, without Listener.
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
	// Configured is the state in the configuration. It differs from State if a request has set
	// another one.
	Configured string `json:"configured"`
	// Namespaces are the namespaces in the group.
	Namespaces []NamespaceID `json:"namespaces"`
}

// ANASet is a state to set.
type ANASet struct {
	// Group is the ANA group.
	Group uint32 `json:"group"`
	// State is a state as in ANA, or configured for the state in the configuration.
	State string `json:"state"`
	// Listener is its name, with or without the transport; without it all listeners are meant.
	Listener string `json:"listener,omitempty"`
}

// ANAState is the new state of a group.
type ANAState struct {
	// State is a state as in ANA, or configured for the state in the configuration.
	State string `json:"state"`
}

// Subsystem is an NVM subsystem.
type Subsystem struct {
	// NQN is its name.
	NQN string `json:"nqn"`
	// AllowAnyHost: every host may connect. Otherwise only Hosts may.
	AllowAnyHost bool     `json:"allow_any_host"`
	Hosts        []string `json:"hosts"`
	// Security is required of allowed hosts: none, auth, tls or auth+tls.
	Security string `json:"security"`
	// Serial number.
	Serial string `json:"serial"`
	// Model number.
	Model string `json:"model"`
	// Namespaces is the number of namespaces in service, PendingNamespaces the number that wait for
	// their storage.
	Namespaces        int `json:"namespaces"`
	PendingNamespaces int `json:"pending_namespaces"`
	// Controllers is the number of associations with hosts.
	Controllers int `json:"controllers"`
	// Limits are the limits of all hosts together.
	Limits *observed.Limits `json:"limits,omitempty"`
	// Configured is missing in lists.
	Configured *observed.Configured `json:"configured,omitempty"`
}

// HostEntry is a host named in the configuration, in one subsystem or in all.
type HostEntry struct {
	// NQN of the host.
	NQN string `json:"nqn"`
	// Subsystems are the NQNs of the subsystems that name it.
	Subsystems []string `json:"subsystems"`
	// Controllers are its associations.
	Controllers []observed.Host `json:"controllers"`
	// Configured is the origin of the entry.
	Configured *observed.Configured `json:"configured,omitempty"`
}

// HostKey is a secret of a host.
type HostKey struct {
	// Key is the secret, in its interchange format.
	Key string `json:"key"`
	// OldKeysUntil makes the previous secret the old one, which stays valid until this date or
	// time. Without it the previous secret ends at once. Repeating the request changes nothing.
	OldKeysUntil string `json:"old_keys_until,omitempty"`
}

// ListenerEntry is a listener named in the configuration.
type ListenerEntry struct {
	// Name is as in Listener.
	Name string `json:"name"`
	// Addresses are its addresses, including missing ones, with the reason.
	Addresses []Listener `json:"addresses"`
	// Configured is the origin of the listener.
	Configured *observed.Configured `json:"configured,omitempty"`
}

// Referral is another discovery service named to hosts.
type Referral struct {
	// Name is the transport and the address with the port, followed by the NQN if it is not the
	// well-known one.
	Name string `json:"name"`
	// Transport is tcp or rdma.
	Transport string `json:"transport"`
	// Address is the IP address and the port.
	Address string `json:"address"`
	// NQN of the discovery service.
	NQN string `json:"nqn"`
	// Hosts are the hosts that receive it; none means all.
	Hosts []string `json:"hosts"`
	// Configured is missing in lists.
	Configured *observed.Configured `json:"configured,omitempty"`
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
	// Partitions are their names.
	Partitions []string `json:"partitions"`
	// Uses lists the users of the disk or of its partitions: mounts, other devices, processes, and
	// namespaces of the target ("namespace 1 of NQN").
	Uses []string `json:"uses"`
	// NotExportable is the reason why it cannot be exported as a whole.
	NotExportable string `json:"not_exportable,omitempty"`
	// Health is the health that the drive reports.
	Health DiskHealth `json:"health"`
}

// DiskHealth is the health that a drive reports.
type DiskHealth struct {
	// State is good, warning, failing or unknown.
	State string `json:"state"`
	// Notes describe problems, or the reason for an unknown health.
	Notes []string `json:"notes"`
	// Celsius is the temperature, 0 if unknown.
	Celsius int `json:"celsius"`
	// PowerOnHours is the power-on time, UsedPercent the used endurance; -1 means unknown.
	PowerOnHours int64 `json:"power_on_hours"`
	UsedPercent  int   `json:"used_percent"`
}

// Plan is the difference between the running target and its configuration file.
type Plan struct {
	// Changes are in the order in which they are carried out.
	Changes []Change `json:"changes"`
	// Warnings are about the configuration and this machine.
	Warnings []string `json:"warnings,omitempty"`
}

// Change is one step.
type Change struct {
	// Text describes the change.
	Text string `json:"text"`
	// NeedsRestart: a reload does not make the change.
	NeedsRestart bool `json:"needs_restart"`
	// Affected are the connected hosts affected by it, in the order of their NQNs. Only answers to
	// plan and reload have them.
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

// Affected is a host affected by a change.
type Affected struct {
	// Host is its NQN.
	Host string `json:"host"`
	// Effect is disconnects, loses or waits.
	Effect string `json:"effect"`
	// Controllers is the number of its associations affected, and InFlight the number of commands
	// in progress on them.
	Controllers int `json:"controllers"`
	InFlight    int `json:"in_flight"`
}

// Disconnect selects associations to end.
type Disconnect struct {
	// Host is the NQN of the host.
	Host string `json:"host"`
	// Subsystem is the NQN of the subsystem; without it all subsystems are meant.
	Subsystem string `json:"subsystem,omitempty"`
}

// Disconnected is the result of Disconnect.
type Disconnected struct {
	// Controllers is the number of associations ended.
	Controllers int `json:"controllers"`
}

// NamespaceID identifies a namespace.
type NamespaceID struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it there.
	NSID uint32 `json:"nsid"`
}

// Object identifies the object of a request to create, change, show or delete it: a subsystem, with
// NSID a namespace of it and with Host a host that may connect to it; a host in all subsystems,
// with Key a secret of it; a listener; or a referral. The path of the request names it.
type Object struct {
	// Subsystem is the NQN of the subsystem.
	Subsystem string `json:"subsystem,omitempty"`
	// NSID is the NSID of a namespace of it.
	NSID uint32 `json:"nsid,omitempty"`
	// Host is the NQN of a host.
	Host string `json:"host,omitempty"`
	// Key is the key of a secret of the host in the configuration file: dhchap_key.
	Key string `json:"key,omitempty"`
	// Listener is its name in the configuration file, or transport, address and port as in
	// "tcp 10.0.0.1:4420" or "rdma [fd00::1]:4420".
	Listener string `json:"listener,omitempty"`
	// Referral is a name as in Referral.Name.
	Referral string `json:"referral,omitempty"`
}

// Resize is the new size of a namespace.
type Resize struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it there.
	NSID uint32 `json:"nsid"`
	// Size is a number of bytes, or has a unit: 20GiB.
	Size string `json:"size"`
	// Shrink allows a smaller size than the current one; the data beyond it is lost.
	Shrink bool `json:"shrink,omitempty"`
}

// Problem is an error (RFC 9457).
type Problem struct {
	// Title is the meaning of Status.
	Title string `json:"title"`
	// Status is the status of the HTTP response.
	Status int `json:"status"`
	// Detail describes the problem.
	Detail string `json:"detail"`
	// Place is the place of the problem: a file with its line and column, a key, or a part of the
	// request.
	Place string `json:"place,omitempty"`
	// Hint says how to fix it.
	Hint string `json:"hint,omitempty"`
	// More has further problems.
	More []Problem `json:"more,omitempty"`
}
