package event

import "log/slog"

// Events of connections.
var (
	ConnectionRefused = refusal("connection refused", refusals)
	ConnectionEnded   = refusal("connection ended", "")
	ProtocolError     = refusal("connection ended for a protocol error", "")
	HostProtocolError = refusal("the host ended a connection for a protocol error", "")
	DataDigestWrong   = refusal("data digest is wrong, the command fails and may be repeated", "")
	TCPNotCompleted   = refusal("TCP handshake not completed", refusals)
	TLSFailed         = refusal("TLS handshake failed", authentication)
	TLSUsed           = info("host uses TLS", authentication)

	RDMARejected     = refusal("RDMA connection rejected", refusals)
	RDMANotRejected  = refusal("RDMA connection cannot be rejected", "")
	RDMANotCompleted = refusal("RDMA handshake not completed", "")
	RDMAFailed       = refusal("RDMA queue ends", "")
	RDMAEnded        = &Kind{Level: slog.LevelDebug, Message: RDMAFailed.Message}
)

// Events of hosts and their controllers.
var (
	ConnectRefused      = refusal("connect refused", refusals)
	OtherAddress        = refusal("I/O queue does not come from the address of its admin queue", "")
	OtherHostIdentifier = refusal("host is connected with another host identifier as well", "")
	SameHostIdentifier  = refusal("another host has the same host identifier", "")
	NoQueueResources    = refusal("no resources for a queue", "")
	Disconnecting       = info("disconnecting", "")

	HostAuthenticated         = info("host has authenticated", authentication)
	AuthenticationFailed      = refusal("authentication failed", authentication)
	AuthenticationNotFinished = refusal("authentication not finished", authentication)
	AuthenticationPaused      = refusal("too many failed authentications of this host and address",
		authentication)
	AuthenticationDue = info("host has to authenticate again", "")

	ControllerCreated    = info("controller created", "")
	ControllerReset      = info("controller reset", "")
	ControllerRemoved    = info("controller removed", "")
	ControllerNotEnabled = refusal("controller was not enabled in time", "")
	KeepAliveExpired     = refusal("keep alive timer expired", "")

	RegisterRefused     = refusal("reservation register refused", refusals)
	ReservationUnstored = refusal(
		"reservations cannot be stored: the command of the host fails", "")
	WriteProtected    = info("a host has write protected a namespace", "")
	NotWriteProtected = refusal("a host cannot change the write protection of a namespace", "")
	SelfTestFailed    = failure(slog.LevelWarn, "a self-test has failed", "")
	CommandFailed     = &Kind{Level: slog.LevelDebug, Message: "command failed"}
	CommandSlow       = info("slow command", "")
	CommandStuck      = failure(slog.LevelWarn, "a command takes a long time", "")
)

// Events of clients and administrators.
var (
	ControlConnectionRefused = refusal("control connection refused", authentication)
	ControlRequestRefused    = refusal("control request refused", refusals)
	MetricsRefused           = refusal("metrics request refused", authentication)
	PageRefused              = refusal("page request refused", authentication)

	ControlRequest       = info("control request", administration)
	ControlRequestFailed = failure(slog.LevelWarn, "control request failed", administration)

	KeyChanged              = info("key changed", "key")
	ConfigurationChanged    = info("configuration", administration)
	ConfigurationApplied    = info("the configuration was applied", administration)
	ConfigurationNotChanged = failure(slog.LevelError, "the configuration was not changed",
		administration)
	AuditLost = failure(slog.LevelWarn, "audit records were lost", "audit")
)
