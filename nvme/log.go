package nvme

import "encoding/binary"

// GetLogSQE is a Get Log Page command (Base section 5.1.12).
type GetLogSQE SQE

// GetLog views s as a Get Log Page command.
func (s *SQE) GetLog() *GetLogSQE { return (*GetLogSQE)(s) }

// LID is the log page (CDW10 bits 7:0).
func (s *GetLogSQE) LID() LID { return LID(s[40]) }

// LSP is the log specific field (CDW10 bits 14:8).
func (s *GetLogSQE) LSP() uint8 { return s[41] & 0x7F }

// RAE asks to retain the asynchronous event (CDW10 bit 15).
func (s *GetLogSQE) RAE() bool { return s[41]&0x80 != 0 }

// Bytes is the number of bytes asked for: NUMD counts dwords, 0-based, in CDW10 bits 31:16 (lower)
// and CDW11 bits 15:0 (upper). It is a multiple of 4 and at most 16 GiB.
func (s *GetLogSQE) Bytes() uint64 {
	numd := uint64(binary.LittleEndian.Uint16(s[42:])) | uint64(
		binary.LittleEndian.Uint16(s[44:]))<<16
	return (numd + 1) * 4
}

// LSI is the log specific identifier (CDW11 bits 31:16).
func (s *GetLogSQE) LSI() uint16 { return binary.LittleEndian.Uint16(s[46:]) }

// LPO is the offset into the log page in bytes, or an index if OT is set (CDW12 and CDW13).
func (s *GetLogSQE) LPO() uint64 { return binary.LittleEndian.Uint64(s[48:]) }

// OT reports whether LPO is an index (CDW14 bit 23).
func (s *GetLogSQE) OT() bool { return s[58]&0x80 != 0 }

// CSI is the command set (CDW14 bits 31:24).
func (s *GetLogSQE) CSI() CSI { return CSI(s[59]) }

// Set writes the log page, the length in bytes (a multiple of 4, at least 4), the offset, LSP and
// RAE.
func (s *GetLogSQE) Set(lid LID, bytes uint64, offset uint64, lsp uint8, rae bool) {
	s[40], s[41] = byte(lid), lsp&0x7F
	if rae {
		s[41] |= 0x80
	}
	numd := bytes/4 - 1
	binary.LittleEndian.PutUint16(s[42:], uint16(numd))
	binary.LittleEndian.PutUint16(s[44:], uint16(numd>>16))
	binary.LittleEndian.PutUint64(s[48:], offset)
}

// LID is a log page identifier (Base section 5.1.12.1).
type LID uint8

// The log pages.
const (
	LogSupportedPages    LID = 0x00
	LogError             LID = 0x01
	LogSMART             LID = 0x02
	LogFirmwareSlot      LID = 0x03
	LogChangedNamespaces LID = 0x04
	LogEffects           LID = 0x05
	LogSelfTest          LID = 0x06
	LogTelemetryHost     LID = 0x07
	LogTelemetryCtrl     LID = 0x08 // Telemetry Controller-Initiated
	LogEnduranceGroup    LID = 0x09
	LogANA               LID = 0x0C
	LogFeatureEffects    LID = 0x12
	LogMIEffects         LID = 0x13 // NVMe-MI Commands Supported and Effects
	LogRotationalMedia   LID = 0x16
	LogDiscovery         LID = 0x70
	LogReservation       LID = 0x80
)

// SupportedPages is the Supported Log Pages log, LID 00h (Base section 5.1.12.1.1): a descriptor
// per log page, bit 0 set if it is supported. Bits 31:16 of each are specific to the page.
type SupportedPages [256]uint32

// SupportedPagesSize is the size of the log.
const SupportedPagesSize = 1024

// Add marks log pages as supported.
func (p *SupportedPages) Add(lids ...LID) {
	for _, l := range lids {
		p[l] |= 1
	}
}

// AddSpecific sets bits of the LID Specific Parameter of a log page.
func (p *SupportedPages) AddSpecific(l LID, bits uint16) { p[l] |= uint32(bits) << 16 }

// Has reports whether a log page is supported.
func (p *SupportedPages) Has(l LID) bool { return p[l]&1 != 0 }

// ChangedNamespacesOverflow is the only entry of log 04h if more than NamespacesPerList namespaces
// changed (Base section 5.1.12.1.5). The log is a namespace list: AppendNamespaceList.
const ChangedNamespacesOverflow uint32 = 0xFFFFFFFF

// FirmwareLogSize is the size of log 03h.
const FirmwareLogSize = 512

// FirmwareLog is the Firmware Slot Information log, LID 03h (Base section 5.1.12.1.4).
type FirmwareLog struct {
	AFI uint8 // active slot in bits 2:0, slot after the next reset in bits 6:4
	_   [7]byte
	FRS [7][8]byte // firmware revisions of slots 1 to 7, ASCII
	_   [448]byte
}

// EffectsLogSize is the size of log 05h.
const EffectsLogSize = 4096

// Effect is a Commands Supported and Effects data structure (Base section 5.1.12.1.6).
type Effect uint32

// The bits of an Effect.
const (
	EffectSupported     Effect = 1 << 0 // CSUPP
	EffectContentChange Effect = 1 << 1 // LBCC: logical block content
)

// EffectsLog is Commands Supported and Effects, LID 05h, without Fabrics commands.
type EffectsLog struct {
	Admin [256]Effect
	IO    [256]Effect
	_     [2048]byte
}

// FeatureEffectsSize is the size of log 12h.
const FeatureEffectsSize = 1024

// FeatureEffect is a FID Supported and Effects data structure (Base section 5.1.12.1.18).
type FeatureEffect uint32

// The bits of a FeatureEffect.
const (
	FeatureSupported       FeatureEffect = 1 << 0  // FSUPP
	FeatureScopeNamespace  FeatureEffect = 1 << 20 // FSP, bits 31:20
	FeatureScopeController FeatureEffect = 1 << 21
	FeatureScopeSubsystem  FeatureEffect = 1 << 25
)

// FeatureEffectsLog is Feature Identifiers Supported and Effects, LID 12h.
type FeatureEffectsLog [256]FeatureEffect
