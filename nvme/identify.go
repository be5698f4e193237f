package nvme

import "encoding/binary"

// IdentifySQE is an Identify command (Base section 5.1.13).
type IdentifySQE SQE

// Identify views s as an Identify command.
func (s *SQE) Identify() *IdentifySQE { return (*IdentifySQE)(s) }

// CNS is the Controller or Namespace Structure asked for (CDW10 bits 7:0).
func (s *IdentifySQE) CNS() CNS { return CNS(s[40]) }

// CNTID is the controller identifier (CDW10 bits 31:16).
func (s *IdentifySQE) CNTID() uint16 { return binary.LittleEndian.Uint16(s[42:]) }

// CNSSpecific is the CNS specific identifier (CDW11 bits 15:0).
func (s *IdentifySQE) CNSSpecific() uint16 { return binary.LittleEndian.Uint16(s[44:]) }

// CSI is the Command Set Identifier (CDW11 bits 31:24).
func (s *IdentifySQE) CSI() CSI { return CSI(s[47]) }

func (s *IdentifySQE) Set(cns CNS, cntid uint16, csi CSI) {
	s[40] = byte(cns)
	binary.LittleEndian.PutUint16(s[42:], cntid)
	s[47] = byte(csi)
}

// CNS selects an Identify data structure (Base section 5.1.13.1).
type CNS uint8

// The data structures that hosts ask for.
const (
	CNSNamespace            CNS = 0x00
	CNSController           CNS = 0x01
	CNSActiveNamespaces     CNS = 0x02
	CNSDescriptors          CNS = 0x03
	CNSCommandSetNamespace  CNS = 0x05
	CNSCommandSetController CNS = 0x06
	CNSCommandSetActive     CNS = 0x07
	CNSIndependentNamespace CNS = 0x08
	CNSAllocatedNamespaces  CNS = 0x10
	CNSAllocatedNamespace   CNS = 0x11
	CNSAttachedControllers  CNS = 0x12
	CNSControllers          CNS = 0x13
	CNSEnduranceGroups      CNS = 0x19
	CNSCommandSets          CNS = 0x1C
)

// CSI is a Command Set Identifier (Base figure 311).
type CSI uint8

// CSINVM is the NVM command set, and CSILast the last one that a specification defines.
const (
	CSINVM  CSI = 0
	CSILast CSI = 4 // computational programs
)

// AppendCommandSets appends the Identify I/O Command Set data structure, CNS 1Ch (Base section
// 5.1.13.2.19): at most 512 combinations of command sets that can be used at the same time, each of
// them with a bit for each CSI.
func AppendCommandSets(b []byte, combinations ...uint64) []byte {
	list := make([]byte, IdentifyDataSize)
	for i, c := range combinations {
		binary.LittleEndian.PutUint64(list[8*i:], c)
	}
	return append(b, list...)
}

// AppendIdentifyControllerNVM appends the I/O Command Set specific Identify Controller data
// structure of the NVM command set, CNS 06h (NVM section 4.1.5.4). Only WUSL is not 0: the
// recommended size of a Write Uncorrectable, a power of two in units of CAP.MPSMIN.
func AppendIdentifyControllerNVM(b []byte, wusl uint8) []byte {
	id := make([]byte, IdentifyDataSize)
	id[2] = wusl
	return append(b, id...)
}

// NSIDAll is the broadcast namespace identifier (Base section 3.2.1).
const NSIDAll uint32 = 0xFFFFFFFF

// NamespacesPerList is the capacity of a namespace list (CNS 02h, CNS 07h, log 04h).
const NamespacesPerList = 1024

// AppendNamespaceList appends a namespace list of 4096 bytes: ascending identifiers, unused entries
// zero (Base sections 4.6.2 and 5.1.13.2.2). No more than NamespacesPerList identifiers are taken.
func AppendNamespaceList(b []byte, nsids []uint32) []byte {
	n := len(b)
	for _, id := range nsids[:min(len(nsids), NamespacesPerList)] {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return append(b, make([]byte, IdentifyDataSize-(len(b)-n))...)
}

// AppendIdentifierList appends a Controller List (Base section 4.6.1) or an Endurance Group List
// (CNS 19h) of 4096 bytes: the number of identifiers, and at most 2047 ascending identifiers.
func AppendIdentifierList(b []byte, ids []uint16) []byte {
	ids = ids[:min(len(ids), IdentifyDataSize/2-1)]
	list := make([]byte, IdentifyDataSize)
	binary.LittleEndian.PutUint16(list, uint16(len(ids)))
	for i, id := range ids {
		binary.LittleEndian.PutUint16(list[2+2*i:], id)
	}
	return append(b, list...)
}
