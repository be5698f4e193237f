package nvme

// Generic command status (SCT 0; Base section 4.2.3.1, NVM section 3.1).
const (
	Success                  Status = 0x000
	InvalidOpcode            Status = 0x001
	InvalidField             Status = 0x002
	CommandIDConflict        Status = 0x003
	DataTransferError        Status = 0x004
	AbortedPowerLoss         Status = 0x005
	InternalError            Status = 0x006
	AbortRequested           Status = 0x007
	AbortedSQDeletion        Status = 0x008
	AbortedFailedFused       Status = 0x009
	AbortedMissingFused      Status = 0x00A
	InvalidNamespaceOrFormat Status = 0x00B
	CommandSequenceError     Status = 0x00C
	InvalidSGLSegment        Status = 0x00D
	InvalidSGLCount          Status = 0x00E
	DataSGLLengthInvalid     Status = 0x00F
	SGLTypeInvalid           Status = 0x011
	AtomicWriteUnitExceeded  Status = 0x014
	SGLOffsetInvalid         Status = 0x016
	HostIDInconsistent       Status = 0x018
	KATOExpired              Status = 0x019
	KATOInvalid              Status = 0x01A
	AbortedPreempt           Status = 0x01B
	NamespaceWriteProtected  Status = 0x020
	CommandInterrupted       Status = 0x021
	TransientTransportError  Status = 0x022
	LBAOutOfRange            Status = 0x080
	CapacityExceeded         Status = 0x081
	NamespaceNotReady        Status = 0x082
	ReservationConflict      Status = 0x083
)

// Command specific status (SCT 1; Base section 4.2.3.2).
const (
	InvalidQueueIdentifier    Status = 0x101
	AbortLimitExceeded        Status = 0x103
	AERLimitExceeded          Status = 0x105
	InvalidLogPage            Status = 0x109
	FeatureNotSaveable        Status = 0x10D
	FeatureNotChangeable      Status = 0x10E
	FeatureNotPerNamespace    Status = 0x10F // Feature Not Namespace Specific
	SelfTestInProgress        Status = 0x11D
	CommandSetsRejected       Status = 0x12B // I/O Command Set Combination Rejected
	ConnectIncompatibleFormat Status = 0x180 // Fabrics: RECFMT not supported
	ConnectControllerBusy     Status = 0x181
	ConnectInvalidParameters  Status = 0x182
	ConnectRestartDiscovery   Status = 0x183
	ConnectInvalidHost        Status = 0x184
	InvalidQueueType          Status = 0x185 // Disconnect on a queue that does not take it
	CommandSizeLimitExceeded  Status = 0x183 // Copy has statuses with the same codes
	IncompatibleNamespace     Status = 0x185
	FastCopyNotPossible       Status = 0x186
	OverlappingIORange        Status = 0x187
	DiscoveryRestart          Status = 0x190
	AuthenticationRequired    Status = 0x191
)

// Media and data integrity errors (SCT 2; Base section 4.2.3.3, NVM section 3.1) and path related
// status (SCT 3; Base section 4.2.3.4).
const (
	WriteFault             Status = 0x280
	UnrecoveredReadError   Status = 0x281
	CompareFailure         Status = 0x285
	InternalPathError      Status = 0x300
	ANAPersistentLoss      Status = 0x301
	ANAInaccessible        Status = 0x302
	ANATransition          Status = 0x303
	ControllerPathingError Status = 0x360
	HostPathingError       Status = 0x370
	CommandAbortedByHost   Status = 0x371
)

var statusNames = map[Status]string{
	Success: "Success", InvalidOpcode: "Invalid Command Opcode",
	InvalidField:      "Invalid Field in Command",
	CommandIDConflict: "Command ID Conflict", DataTransferError: "Data Transfer Error",
	AbortedPowerLoss:        "Commands Aborted due to Power Loss Notification",
	AbortedFailedFused:      "Command Aborted due to Failed Fused Command",
	AbortedMissingFused:     "Command Aborted due to Missing Fused Command",
	AtomicWriteUnitExceeded: "Atomic Write Unit Exceeded",
	CommandInterrupted:      "Command Interrupted",
	InternalError:           "Internal Error", AbortRequested: "Command Abort Requested",
	AbortedSQDeletion:        "Command Aborted due to SQ Deletion",
	InvalidNamespaceOrFormat: "Invalid Namespace or Format",
	CommandSequenceError:     "Command Sequence Error",
	InvalidSGLSegment:        "Invalid SGL Segment Descriptor",
	InvalidSGLCount:          "Invalid Number of SGL Descriptors",
	DataSGLLengthInvalid:     "Data SGL Length Invalid",
	SGLTypeInvalid:           "SGL Descriptor Type Invalid", SGLOffsetInvalid: "SGL Offset Invalid",
	HostIDInconsistent:      "Host Identifier Inconsistent Format",
	KATOExpired:             "Keep Alive Timer Expired",
	KATOInvalid:             "Keep Alive Timeout Invalid",
	TransientTransportError: "Transient Transport Error",
	AbortedPreempt:          "Command Aborted due to Preempt and Abort",
	NamespaceWriteProtected: "Namespace is Write Protected", LBAOutOfRange: "LBA Out of Range",
	CapacityExceeded: "Capacity Exceeded", NamespaceNotReady: "Namespace Not Ready",
	ReservationConflict: "Reservation Conflict", InvalidQueueIdentifier: "Invalid Queue Identifier",
	AbortLimitExceeded: "Abort Command Limit Exceeded",
	AERLimitExceeded:   "Asynchronous Event Request Limit Exceeded",
	InvalidLogPage:     "Invalid Log Page", FeatureNotSaveable: "Feature Identifier Not Saveable",
	FeatureNotChangeable:      "Feature Not Changeable",
	FeatureNotPerNamespace:    "Feature Not Namespace Specific",
	SelfTestInProgress:        "Device Self-test in Progress",
	CommandSetsRejected:       "I/O Command Set Combination Rejected",
	ConnectIncompatibleFormat: "Connect Incompatible Format",
	ConnectControllerBusy:     "Connect Controller Busy",
	ConnectInvalidParameters:  "Connect Invalid Parameters",
	ConnectRestartDiscovery:   "Connect Restart Discovery or Command Size Limit Exceeded",
	ConnectInvalidHost:        "Connect Invalid Host",
	InvalidQueueType:          "Invalid Queue Type or Incompatible Namespace or Format",
	FastCopyNotPossible:       "Fast Copy Not Possible",
	OverlappingIORange:        "Overlapping I/O Range",
	DiscoveryRestart:          "Discovery Restart",
	AuthenticationRequired:    "Authentication Required",
	WriteFault:                "Write Fault", UnrecoveredReadError: "Unrecovered Read Error",
	CompareFailure:         "Compare Failure",
	InternalPathError:      "Internal Path Error",
	ANAPersistentLoss:      "Asymmetric Access Persistent Loss",
	ANAInaccessible:        "Asymmetric Access Inaccessible",
	ANATransition:          "Asymmetric Access Transition",
	ControllerPathingError: "Controller Pathing Error", HostPathingError: "Host Pathing Error",
	CommandAbortedByHost: "Command Aborted By Host",
}
