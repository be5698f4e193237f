package nvme

// FeaturesSQE is a Get Features or Set Features command (Base sections 5.1.11 and 5.1.25).
type FeaturesSQE SQE

// Features views s as a Get Features or Set Features command.
func (s *SQE) Features() *FeaturesSQE { return (*FeaturesSQE)(s) }

// FID is the feature (CDW10 bits 7:0).
func (s *FeaturesSQE) FID() FID { return FID(s[40]) }

// SEL selects the value that Get Features returns (CDW10 bits 10:8).
func (s *FeaturesSQE) SEL() FeatureSelect { return FeatureSelect(s[41] & 7) }

// SV asks Set Features to save the value (CDW10 bit 31).
func (s *FeaturesSQE) SV() bool { return s[43]&0x80 != 0 }

// Value is CDW11, the new value of most features.
func (s *FeaturesSQE) Value() uint32 { return (*SQE)(s).CDW(11) }

// Set writes FID and CDW11 of a Set Features command that does not save.
func (s *FeaturesSQE) Set(fid FID, value uint32) {
	(*SQE)(s).SetCDW(10, uint32(fid))
	(*SQE)(s).SetCDW(11, value)
}

// FID is a feature identifier (Base section 5.1.25.1).
type FID uint8

// The features.
const (
	FeatureArbitration          FID = 0x01
	FeaturePowerManagement      FID = 0x02
	FeatureTemperatureThreshold FID = 0x04
	FeatureErrorRecovery        FID = 0x05 // NVM section 4.1.3
	FeatureVolatileWriteCache   FID = 0x06
	FeatureNumberOfQueues       FID = 0x07
	FeatureInterruptCoalescing  FID = 0x08
	FeatureInterruptVector      FID = 0x09
	FeatureWriteAtomicity       FID = 0x0A // NVM section 4.1.3
	FeatureAsyncEventConfig     FID = 0x0B
	FeatureTimestamp            FID = 0x0E
	FeatureKeepAliveTimer       FID = 0x0F
	FeatureHostBehavior         FID = 0x16
	FeatureCommandSetProfile    FID = 0x19
	FeatureSpinupControl        FID = 0x1A
	FeatureHostIdentifier       FID = 0x81
	FeatureReservationMask      FID = 0x82
	FeatureReservationPersist   FID = 0x83
	FeatureWriteProtect         FID = 0x84
)

// InterruptNotCoalesced is CD of FeatureInterruptVector (Base section 5.1.25.2.3).
const InterruptNotCoalesced = 1 << 16

// FeatureSelect is SEL of Get Features (Base section 5.1.11).
type FeatureSelect uint8

// The values of SEL.
const (
	FeatureCurrent      FeatureSelect = 0
	FeatureDefault      FeatureSelect = 1
	FeatureSaved        FeatureSelect = 2
	FeatureCapabilities FeatureSelect = 3
)

// The result of Get Features with SEL FeatureCapabilities (DW0).
const (
	FeatureCapNamespaceSpecific uint32 = 1 << 1
	FeatureCapChangeable        uint32 = 1 << 2
)

// NumberOfQueues is CDW11 and the result of the Number of Queues feature (FID 07h): submission
// queues in bits 15:0, completion queues in bits 31:16, both 0-based; FFFFh is not allowed in a
// request.
type NumberOfQueues uint32

// MakeNumberOfQueues makes the value for n submission and n completion queues, 1 to 65535.
func MakeNumberOfQueues(n int) NumberOfQueues {
	v := uint32(uint16(n - 1))
	return NumberOfQueues(v | v<<16)
}

// Submission is the number of submission queues, counted from 1.
func (n NumberOfQueues) Submission() int { return int(uint16(n)) + 1 }

// Completion is the number of completion queues, counted from 1.
func (n NumberOfQueues) Completion() int { return int(n>>16) + 1 }

// EventMask is Asynchronous Event Configuration (FID 0Bh, CDW11) and OAES of Identify Controller:
// bits 7:0 are the SMART warnings, the others notices.
type EventMask uint32

// The events.
const (
	EventSMARTMask        EventMask = 0x1F // bits 4:0 of the critical warning
	EventSpareLow         EventMask = SMARTSpareLow
	EventTemperature      EventMask = SMARTTemperature
	EventReliability      EventMask = SMARTReliability
	EventReadOnly         EventMask = SMARTReadOnly
	EventVolatileMemory   EventMask = SMARTVolatileMemory
	EventNamespaceChanged EventMask = 1 << 8  // attached namespace attribute notices
	EventANAChanged       EventMask = 1 << 11 // asymmetric namespace access change notices
	EventDiscoveryChanged EventMask = 1 << 31 // discovery log page change notices
)

// TemperatureThreshold is CDW11 of the Temperature Threshold feature (FID 04h): the threshold in
// kelvin in bits 15:0, TMPSEL in bits 19:16, THSEL in bits 21:20 (Base section 5.1.25.1.3).
type TemperatureThreshold uint32

// TMPSELComposite is the composite temperature, TMPSELAll every sensor, in Set Features only.
// THSELOver and THSELUnder are the thresholds of a sensor.
const (
	TMPSELComposite = 0
	TMPSELAll       = 0xF
	THSELOver       = 0
	THSELUnder      = 1
)

// TMPTH is the threshold in kelvin.
func (t TemperatureThreshold) TMPTH() uint16 { return uint16(t) }

// TMPSEL is the sensor.
func (t TemperatureThreshold) TMPSEL() uint8 { return uint8(t>>16) & 0xF }

// THSEL is the threshold of the sensor.
func (t TemperatureThreshold) THSEL() uint8 { return uint8(t>>20) & 3 }

// ErrorRecoveryDULBE is the bit of the Error Recovery feature (FID 05h, CDW11) that makes reads of
// deallocated blocks fail. Bits 15:0 are TLER, a time limit for error recovery in units of 100 ms
// (NVM section 4.1.3).
const ErrorRecoveryDULBE uint32 = 1 << 16

// TimestampSize is the size of a Timestamp data structure, and TimestampSet its origin if a host
// has set it: bits 3:1 of byte 6 (Base section 5.1.25.1.7).
const (
	TimestampSize       = 8
	TimestampSet  uint8 = 1 << 1
)

// HostBehaviorSize is the size of the Host Behavior Support data structure (Base section
// 5.1.25.1.14). It begins with ACRE, ETDAS, LBAFEE and HDISNS, each a byte that is 0 or 1, and with
// the 16 bits of CDFE; the rest is reserved.
const (
	HostBehaviorSize = 512
	HostBehaviorCDFE = 4 // offset
)

// WriteProtection is the state of the Namespace Write Protection feature (FID 84h, CDW11 bits 2:0;
// Base section 5.1.25.1.31).
type WriteProtection uint8

// The states.
const (
	NoWriteProtect              WriteProtection = 0
	WriteProtect                WriteProtection = 1
	WriteProtectUntilPowerCycle WriteProtection = 2
	PermanentWriteProtect       WriteProtection = 3
)

// NWPC of Identify Controller: the supported states.
const (
	NWPCWriteProtect    = 1 << 0 // NoWriteProtect and WriteProtect
	NWPCUntilPowerCycle = 1 << 1
)
