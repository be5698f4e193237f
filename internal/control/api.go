package control

import (
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// This file and package observed are the interface: the content of requests and answers.
// openapi.json is generated from their comments.

// ListenerID selects listeners.
type ListenerID struct {
	// Listener is an IP address and port, with or without the transport before it, or a port ID.
	Listener string `json:"listener,omitempty"`
	// All selects all listeners, in place of Listener.
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
	// Configured is the configured state; State differs from it if a request has set another one.
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
	// Listener is the name of one, with or without the transport; without it all are meant.
	Listener string `json:"listener,omitempty"`
}

// ANAState is the new state of a group.
type ANAState struct {
	// State is a state as in ANA, or configured for the state in the configuration.
	State string `json:"state"`
}

// GatewayID selects a gateway of the groups.
type GatewayID struct {
	// Gateway is its name.
	Gateway string `json:"gateway"`
}

// GroupDrain selects groups that several gateways share, to be given away or taken again.
type GroupDrain struct {
	// Group is the ANA group.
	Group uint32 `json:"group,omitempty"`
	// Gateway selects all groups, in place of Group: the name of the gateway that is asked.
	Gateway string `json:"gateway,omitempty"`
	// Undo lets the gateway take the groups again. It does so if no other one holds them.
	Undo bool `json:"undo,omitempty"`
}

// GroupChange is a change of the configuration that gateways share.
type GroupChange struct {
	// Configuration is the new text: a JSON object with the keys hosts and subsystems of the
	// configuration file.
	Configuration string `json:"configuration,omitempty"`
	// Rollback is the version to repeat, without Configuration.
	Rollback uint64 `json:"rollback,omitempty"`
	// Base is the version that the change is made from; it fails if there is a newer one. Without
	// it the newest is replaced.
	Base uint64 `json:"base,omitempty"`
	// DryRun: nothing is changed. The answer has the connected hosts of this gateway that the
	// changes concern.
	DryRun bool `json:"dry_run,omitempty"`
}

// GroupVersion is a version of the configuration that gateways share.
type GroupVersion struct {
	// Version counts from 1.
	Version uint64 `json:"version"`
	// Applied: it is in force at this gateway.
	Applied bool `json:"applied"`
	// Time is when it was stored, on the clock of Gateway.
	Time time.Time `json:"time"`
	// Gateway is the name of the gateway that has stored it.
	Gateway string `json:"gateway"`
	// Of is the version that it repeats.
	Of uint64 `json:"of,omitempty"`
	// Configuration is its content, as in GroupChange.
	Configuration string `json:"configuration"`
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
	Addresses []observed.Listener `json:"addresses"`
	// Configured is the origin of the listener.
	Configured *observed.Configured `json:"configured,omitempty"`
}

// Referral is another discovery service named to hosts.
type Referral struct {
	// Name is the transport and the address with the port, and the NQN unless it is well-known.
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
	// Affected are the connected hosts affected by it, by NQN; only in answers to plan and reload.
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
	// Effect is disconnects (associations end), loses (the namespace) or waits (for its storage).
	Effect string `json:"effect"`
	// Controllers counts its associations affected, InFlight their commands in progress.
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
	// NSID identifies it in the subsystem.
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
	// Referral is the name of a referral.
	Referral string `json:"referral,omitempty"`
}

// Resize is the new size of a namespace.
type Resize struct {
	// Subsystem is the NQN of its subsystem.
	Subsystem string `json:"subsystem"`
	// NSID identifies it in the subsystem.
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
	// Detail is a description of the problem.
	Detail string `json:"detail"`
	// Place is where the problem is: a file with line and column, a key, or a part of the
	// request.
	Place string `json:"place,omitempty"`
	// Hint is a way to fix the problem.
	Hint string `json:"hint,omitempty"`
	// More are further problems.
	More []Problem `json:"more,omitempty"`
}

// Succession is a restart in which another process replaces the running one.
type Succession struct {
	// PID is the process ID of the one that ends now.
	PID int `json:"pid"`
	// Successor is the process ID of the one that serves afterwards.
	Successor int `json:"successor"`
	// ControlSocket is the control socket of that one if it is another. Clients may reach the same
	// socket at another path, such as outside a container.
	ControlSocket string `json:"control_socket,omitempty"`
}
