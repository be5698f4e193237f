package nvme

// AsyncEvent is DW0 of a completed Asynchronous Event Request (Base section 5.1.2): type in bits
// 2:0, information in bits 15:8, the log page that clears the event in bits 23:16.
type AsyncEvent uint32

// AsyncEventType is bits 2:0 of an AsyncEvent.
type AsyncEventType uint8

// The event types.
const (
	AsyncError  AsyncEventType = 0
	AsyncSMART  AsyncEventType = 1
	AsyncNotice AsyncEventType = 2
)

// The events that a fabrics target sends, complete with their log page.
const (
	AsyncNamespaceChanged AsyncEvent = AsyncEvent(AsyncNotice) | 0x00<<8 | AsyncEvent(
		LogChangedNamespaces)<<16
	AsyncFirmwareStarting AsyncEvent = AsyncEvent(AsyncNotice) | 0x01<<8 | AsyncEvent(
		LogFirmwareSlot)<<16
	AsyncANAChanged       AsyncEvent = AsyncEvent(AsyncNotice) | 0x03<<8 | AsyncEvent(LogANA)<<16
	AsyncDiscoveryChanged AsyncEvent = AsyncEvent(AsyncNotice) | 0xF0<<8 | AsyncEvent(
		LogDiscovery)<<16
	AsyncReliability     AsyncEvent = AsyncEvent(AsyncSMART) | 0x00<<8 | AsyncEvent(LogSMART)<<16
	AsyncTemperature     AsyncEvent = AsyncEvent(AsyncSMART) | 0x01<<8 | AsyncEvent(LogSMART)<<16
	AsyncSpareLow        AsyncEvent = AsyncEvent(AsyncSMART) | 0x02<<8 | AsyncEvent(LogSMART)<<16
	AsyncPersistentError AsyncEvent = AsyncEvent(AsyncError) | 0x03<<8 | AsyncEvent(LogError)<<16
)

// MakeAsyncEvent makes an event.
func MakeAsyncEvent(t AsyncEventType, info uint8, lid LID) AsyncEvent {
	return AsyncEvent(t&7) | AsyncEvent(info)<<8 | AsyncEvent(lid)<<16
}

// Type is the event type.
func (e AsyncEvent) Type() AsyncEventType { return AsyncEventType(e & 7) }

// Info is the event information.
func (e AsyncEvent) Info() uint8 { return uint8(e >> 8) }

// LID is the log page that belongs to the event.
func (e AsyncEvent) LID() LID { return LID(e >> 16) }
