package nvme

// AsyncEvent is DW0 of a completed Asynchronous Event Request (Base section 5.1.2): type in bits
// 2:0, information in bits 15:8, the log page that clears the event in bits 23:16.
type AsyncEvent uint32

// The event types that a fabrics target sends, bits 2:0.
const (
	AsyncError  AsyncEvent = 0
	AsyncSMART  AsyncEvent = 1
	AsyncNotice AsyncEvent = 2
	AsyncIO     AsyncEvent = 6 // I/O Command Specific status
)

// The events, with their log pages.
const (
	// AsyncPersistentError is Persistent Internal Error: the host should reset the controller.
	AsyncPersistentError  = AsyncError | 0x03<<8 | AsyncEvent(LogError)<<16
	AsyncNamespaceChanged = AsyncNotice | 0x00<<8 | AsyncEvent(LogChangedNamespaces)<<16
	AsyncDiscoveryChanged = AsyncNotice | 0xF0<<8 | AsyncEvent(LogDiscovery)<<16
	AsyncANAChanged       = AsyncNotice | 0x03<<8 | AsyncEvent(LogANA)<<16
	AsyncReliability      = AsyncSMART | 0x00<<8 | AsyncEvent(LogSMART)<<16
	AsyncTemperature      = AsyncSMART | 0x01<<8 | AsyncEvent(LogSMART)<<16
	AsyncReservation      = AsyncIO | 0x00<<8 | AsyncEvent(LogReservation)<<16
	AsyncSpareLow         = AsyncSMART | 0x02<<8 | AsyncEvent(LogSMART)<<16
)

// LID is the log page that belongs to the event.
func (e AsyncEvent) LID() LID { return LID(e >> 16) }
