package verbs

// AsyncType is the type of an event of a device, with the values of enum ibv_event_type.
type AsyncType uint32

// The events that this program uses.
const (
	AsyncCQErr            AsyncType = 0
	AsyncQPFatal          AsyncType = 1
	AsyncQPReqErr         AsyncType = 2
	AsyncQPAccessErr      AsyncType = 3
	AsyncPathMigErr       AsyncType = 7
	AsyncDeviceFatal      AsyncType = 8
	AsyncPortActive       AsyncType = 9
	AsyncPortErr          AsyncType = 10
	AsyncSRQErr           AsyncType = 14
	AsyncQPLastWQEReached AsyncType = 16
	AsyncWQFatal          AsyncType = 19
)

var asyncNames = [...]string{
	"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG",
	"PATH_MIG_ERR", "DEVICE_FATAL",
	"PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
	"SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED",
	"CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL",
}

// String is the name without the IBV_EVENT_ prefix.
func (t AsyncType) String() string {
	if int(t) < len(asyncNames) {
		return asyncNames[t]
	}
	return "UNKNOWN"
}

// AsyncEvent is an asynchronous event (ibv_get_async_event).
type AsyncEvent struct {
	Type AsyncType
	// CQ is the affected completion queue as CreateCQ returned it, nil for other events.
	CQ CQ
	// SRQ is the affected shared receive queue; nil for other events.
	SRQ SRQ
	// QPNum is the number of the affected queue pair, for events of queue pairs.
	QPNum uint32
}
