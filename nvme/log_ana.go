package nvme

import (
	"cmp"
	"encoding/binary"
	"fmt"
)

// ANAHeader is the header of the Asymmetric Namespace Access log, LID 0Ch (Base section
// 5.1.12.1.13). Group descriptors follow.
type ANAHeader struct {
	CHGC uint64 // changes with the log; 0: not reported
	NAGD uint16 // descriptors
	_    [6]byte
}

// ANADescriptor is an ANA Group Descriptor (Base section 5.1.12.1.13, figure 224). The NSIDs of the
// group follow, in ascending order.
type ANADescriptor struct {
	AGID uint32
	NNV  uint32 // NSIDs; 0 with ANAGroupsOnly
	CHGC uint64 // changes with the descriptor; 0: not reported
	ANAS ANAState
	_    [15]byte
}

// The sizes of the parts of the log.
const (
	ANAHeaderSize     = 16
	ANADescriptorSize = 32
)

// ANAGroupsOnly (RGO in LSP) asks for descriptors without NSIDs (Base section 5.1.12.1.13).
const ANAGroupsOnly = 1 << 0

// ANAState is an asymmetric namespace access state (Base section 8.1.1.3).
type ANAState uint8

// The states.
const (
	ANAStateOptimized      ANAState = 0x01
	ANAStateNonOptimized   ANAState = 0x02
	ANAStateInaccessible   ANAState = 0x03
	ANAStatePersistentLoss ANAState = 0x04
	ANAStateChange         ANAState = 0x0F
)

// ANAStates has all states, in the order of the bits of ANACAP.
var ANAStates = [...]ANAState{
	ANAStateOptimized, ANAStateNonOptimized, ANAStateInaccessible, ANAStatePersistentLoss,
	ANAStateChange,
}

var anaStateNames = map[ANAState]string{
	ANAStateOptimized: "optimized", ANAStateNonOptimized: "non-optimized",
	ANAStateInaccessible: "inaccessible", ANAStatePersistentLoss: "persistent-loss",
	ANAStateChange: "change",
}

// String returns the state as named by Linux: "non-optimized".
func (s ANAState) String() string {
	return cmp.Or(anaStateNames[s], fmt.Sprintf("state %#x", uint8(s)))
}

// Status returns the status of commands that the state does not allow (Base section 4.2.3.4), or
// Success if it allows all of them.
func (s ANAState) Status() Status {
	switch s {
	case ANAStateInaccessible:
		return ANAInaccessible
	case ANAStatePersistentLoss:
		return ANAPersistentLoss
	case ANAStateChange:
		return ANATransition
	}
	return Success
}

// ANAGroup is a descriptor with its NSIDs.
type ANAGroup struct {
	ANADescriptor
	NSIDs []uint32
}

// AppendANALog appends a log.
func AppendANALog(b []byte, changes uint64, groups []ANAGroup) []byte {
	b = Append(b, &ANAHeader{CHGC: changes, NAGD: uint16(len(groups))})
	for i := range groups {
		g := &groups[i]
		d := g.ANADescriptor
		d.NNV = uint32(len(g.NSIDs))
		b = Append(b, &d)
		for _, nsid := range g.NSIDs {
			b = binary.LittleEndian.AppendUint32(b, nsid)
		}
	}
	return b
}
