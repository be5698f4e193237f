package nvme

// FirmwareLogSize is the size of log 03h.
const FirmwareLogSize = 512

// FirmwareLog is the Firmware Slot Information log, LID 03h (Base section 5.1.12.1.4).
type FirmwareLog struct {
	AFI uint8 // active slot in bits 2:0, slot after the next reset in bits 6:4
	_   [7]byte
	FRS [7][8]byte // firmware revisions of slots 1 to 7, ASCII
	_   [448]byte
}
