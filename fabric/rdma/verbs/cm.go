package verbs

import (
	"net/netip"
	"time"
)

// CM is a communication manager with one event channel (librdmacm).
type CM interface {
	// Listen binds and listens: rdma_create_id, rdma_bind_addr, rdma_listen. The address may be a
	// wildcard, IPv4 or IPv6; :: takes IPv4 as well. Port 0 chooses one. ErrNoDevice if no RDMA
	// device has the address, EADDRINUSE if the port is in use. tos is the type of service of the
	// connections if it is not 0: on RoCE the kernel uses that of the host's request instead.
	Listen(addr netip.AddrPort, backlog int, tos uint8) (ID, error)
	// NewID makes an ID for the active side: ResolveAddr, ResolveRoute, CreateQP, Connect, each
	// answered by an event.
	NewID() (ID, error)
	// Next waits for the next event, which is already acknowledged. One ordinary goroutine calls
	// it. It returns ErrClosed after Close.
	Next() (Event, error)
	// Close ends Next and frees the channel; every ID must have been destroyed.
	Close() error
}

// ID is a CM identifier (struct rdma_cm_id): a listener or one connection.
type ID interface {
	// SetContext attaches a value for Context. Set it before the ID's next event, or guard it.
	SetContext(v any)
	Context() any
	// Device returns the device of the ID, nil for a wildcard listener.
	Device() Device
	// Local and Remote return the addresses of the connection or listener. On the passive side a
	// link-local address may lack its zone.
	Local() netip.AddrPort
	Remote() netip.AddrPort

	ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error
	ResolveRoute(timeout time.Duration) error
	// CreateQP makes the QP of this ID on a PD of Device(). EINVAL: the request was withdrawn.
	CreateQP(pd PD, init QPInit) (QP, error)
	// Connect asks for the connection: Established, Rejected or Unreachable follows. Soft iWARP
	// devices connect at once and return the error.
	Connect(p ConnParam) error
	// Accept accepts a ConnectRequest; Established follows.
	Accept(p ConnParam) error
	// Reject refuses a ConnectRequest with private data.
	Reject(private []byte) error
	// Disconnect ends the connection. This side's QP goes to the error state. On RoCE the peer's QP
	// does not change until the peer, after EventDisconnected, calls Disconnect as well; on iWARP
	// it fails at once. Repeated calls are harmless.
	Disconnect() error
	// Destroy frees the ID; its QP must have been destroyed, or have failed to be destroyed. No
	// event of it is delivered afterwards, except one that Next has already returned.
	Destroy() error
}

// ConnParam is struct rdma_conn_param.
type ConnParam struct {
	// PrivateData has on RoCE at most 56 bytes in a request, 196 in an accept, 148 in a rejection,
	// and events have all of it, padded with zeroes. On iWARP it has at most 255 bytes, and events
	// have only the bytes sent.
	PrivateData []byte
	// ResponderResources is the number of RDMA READs of the peer that this side serves at once;
	// InitiatorDepth is the number that it issues. In an event they are the peer's values from this
	// side's point of view, as in rdma_get_cm_event(3).
	ResponderResources, InitiatorDepth uint8
	RetryCount, RNRRetryCount          uint8 // RNRRetryCount 7 is unlimited
	FlowControl                        bool
}

// EventType is enum rdma_cm_event_type, same order and values.
type EventType uint32

// The events that this program uses.
const (
	EventAddrResolved   EventType = 0
	EventAddrError      EventType = 1
	EventRouteResolved  EventType = 2
	EventConnectRequest EventType = 4
	EventConnectError   EventType = 6
	EventUnreachable    EventType = 7
	EventRejected       EventType = 8
	EventEstablished    EventType = 9
	EventDisconnected   EventType = 10
	EventDeviceRemoval  EventType = 11
	EventAddrChange     EventType = 14
	EventTimewaitExit   EventType = 15
)

var eventNames = [...]string{
	"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST",
	"CONNECT_RESPONSE",
	"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL",
	"MULTICAST_JOIN",
	"MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
}

// String is the name without the RDMA_CM_EVENT_ prefix.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return "UNKNOWN"
}

// Event is a communication manager event. The private data is a copy.
type Event struct {
	Type EventType
	// Status is the event's status: a negative errno or, for Rejected, the transport's reason.
	Status int
	// ID is the affected connection as its creator got it, a new one for ConnectRequest.
	ID ID
	// Listener is the listener that received a ConnectRequest.
	Listener ID
	// Param is sent by the peer with ConnectRequest, Established, ConnectResponse and Rejected.
	Param ConnParam
}
