package observed

// Group is an ANA group that several gateways share, as this one sees it.
type Group struct {
	// Cluster is the FSID of the Ceph cluster with the state of the group, empty until the gateway
	// has reached it. Cluster, pool and number identify the group.
	Cluster string `json:"cluster,omitempty"`
	// Pool is the pool with the state.
	Pool string `json:"pool"`
	// ANAGroup is its number.
	ANAGroup uint32 `json:"ana_group"`
	// State is joining (without a connection to the storage), standby, taking, opening, serving,
	// stopping or left.
	State string `json:"state"`
	// Holder is the gateway that holds the group, empty for none.
	Holder string `json:"holder,omitempty"`
	// HolderSeconds is the time since the holder changed, as seen by this gateway.
	HolderSeconds float64 `json:"holder_seconds"`
	// LeaseSeconds is the time for which this gateway may use its lease, 0 if it has none.
	LeaseSeconds float64 `json:"lease_seconds"`
	// Drained: the group was given away by hand, and this gateway does not take it.
	Drained bool `json:"drained"`
	// Hosts: hosts that use the group are connected here.
	Hosts bool `json:"hosts"`
	// Reason is why this gateway last took the group or gave it away.
	Reason string `json:"reason,omitempty"`
	// Problem is the reason why this gateway cannot take or keep the group, or cannot read the
	// configuration of all gateways.
	Problem string `json:"problem,omitempty"`
	// Configuration is the version of the configuration of all gateways that is in force here, 0 if
	// they do not share one. If a newer one cannot be, the reason is in Differences.
	Configuration uint64 `json:"configuration,omitempty"`
	// Differences are settings of this gateway that conflict with settings of others.
	Differences []string `json:"differences,omitempty"`
	// Gateways are the gateways that take part.
	Gateways []Gateway `json:"gateways"`
	// Fenced are former holders. The storage has to refuse their connections.
	Fenced []Gateway `json:"fenced"`
	// FenceSeconds is the time until the first fence of Fenced ends. Only the gateway that serves
	// the group knows it.
	FenceSeconds float64 `json:"fence_seconds,omitempty"`
	// CheckSeconds is the time since it has checked these fences.
	CheckSeconds float64 `json:"check_seconds,omitempty"`
}

// Gateway is a gateway with one set of connections to the storage.
type Gateway struct {
	// Name is its configured name.
	Name string `json:"name"`
	// Instance identifies its connections.
	Instance string `json:"instance"`
	// Addresses are the addresses of its connections, as in the blocklist of a Ceph cluster.
	Addresses []string `json:"addresses,omitempty"`
	// Hosts: hosts that use the group are connected there.
	Hosts bool `json:"hosts"`
}
