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
