package nvme

// The sizes of logs 09h and 16h.
const (
	EnduranceGroupLogSize  = 512
	RotationalMediaLogSize = 512
)

// EnduranceGroupLog is the Endurance Group Information log, LID 09h (Base section 5.1.12.1.10).
type EnduranceGroupLog struct {
	CriticalWarning  uint8 // bits 0, 2 and 3 as in the SMART log
	EGFEAT           EGFEAT
	_                uint8
	AvailableSpare   uint8 // percent
	SpareThreshold   uint8 // percent
	PercentageUsed   uint8
	DomainID         uint16
	_                [24]byte
	Estimate         Uint128 // 10^9 bytes that may be written over the life of the group
	DataUnitsRead    Uint128 // 10^9 bytes
	DataUnitsWritten Uint128
	MediaWritten     Uint128
	HostReads        Uint128 // commands
	HostWrites       Uint128
	MediaErrors      Uint128
	ErrorLogEntries  Uint128
	Capacity         Uint128 // bytes
	Unallocated      Uint128 // bytes
	_                [320]byte
}

// EGFEAT is Endurance Group Features.
type EGFEAT uint8

// EGFEATRotational (EGRMEDIA): the group stores data on rotational media.
const EGFEATRotational EGFEAT = 1 << 0

// RotationalMediaLog is the Rotational Media Information log, LID 16h (Base section 5.1.12.1.22).
type RotationalMediaLog struct {
	ENDGID uint16
	NUMA   uint16 // actuators
	NRS    uint16 // revolutions per minute, 0 if not reported
	_      uint16
	SPINC  uint32 // spinups
	FSPINC uint32 // failed spinups
	LDC    uint32 // loads
	FLDC   uint32 // failed loads
	_      [488]byte
}
