package nvme

// TelemetryBlock is the unit of telemetry logs in bytes, and the size of their header.
const TelemetryBlock = 512

// TelemetryCreate is the bit of LSP that asks for a new capture of log 07h (CTHID).
const TelemetryCreate uint8 = 1 << 0

// TelemetryScopeController is the scope of a telemetry log of one controller.
const TelemetryScopeController = 1

// TelemetryHeader is the header of the Telemetry Host-Initiated log, LID 07h, and of the Telemetry
// Controller-Initiated log, LID 08h (Base sections 5.1.12.1.8 and 5.1.12.1.9).
type TelemetryHeader struct {
	LID   LID
	_     [4]byte
	IEEE  [3]byte
	Last  [3]uint16 // blocks of data areas 1 to 3, which all begin at block 1; 0: there is no data
	_     [2]byte
	Last4 uint32 // of data area 4
	_     [360]byte
	THS   uint8 // scope of 07h
	THDGN uint8 // generation of 07h; in 08h this is TCS, its scope
	TCDA  uint8 // 1: there is data in 08h
	TCDGN uint8 // generation of 08h
	RID   [128]byte
}

// AppendTelemetry appends the header and the data, which is in all of data areas 1 to 3. The last
// block is padded with line feeds, so that text remains text. data is at most 32 MiB.
func AppendTelemetry(b []byte, h TelemetryHeader, data []byte) []byte {
	blocks := (len(data) + TelemetryBlock - 1) / TelemetryBlock
	h.Last = [3]uint16{uint16(blocks), uint16(blocks), uint16(blocks)}
	b = append(Append(b, &h), data...)
	for range blocks*TelemetryBlock - len(data) {
		b = append(b, '\n')
	}
	return b
}
