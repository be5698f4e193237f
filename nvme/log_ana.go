package nvme

import (
	"encoding/binary"
	"fmt"
)

// ANAState is an Asymmetric Namespace Access state (Base section 8.1.1).
type ANAState uint8

// The states.
const (
	ANAStateOptimized      ANAState = 0x01
	ANAStateNonOptimized   ANAState = 0x02
	ANAStateInaccessible   ANAState = 0x03
	ANAStatePersistentLoss ANAState = 0x04
	ANAStateChange         ANAState = 0x0F
)

// ANALSPGroupsOnly is the LSP bit (RGO) that leaves the namespace identifiers out of log 0Ch.
const ANALSPGroupsOnly = 1 << 0

const (
	anaHeaderSize = 16
	anaGroupSize  = 32
)

// ANALog is the Asymmetric Namespace Access log, LID 0Ch (Base section 5.1.12.1.13).
type ANALog struct {
	ChangeCount uint64
	Groups      []ANAGroup
}

// ANAGroup is an ANA Group Descriptor. Groups ascend by ID, namespaces ascend.
type ANAGroup struct {
	ID          uint32
	ChangeCount uint64
	State       ANAState
	NSIDs       []uint32
}

// Append appends the log.
func (l *ANALog) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, l.ChangeCount)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(l.Groups)))
	b = append(b, make([]byte, 6)...)
	for i := range l.Groups {
		g := &l.Groups[i]
		b = binary.LittleEndian.AppendUint32(b, g.ID)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(g.NSIDs)))
		b = binary.LittleEndian.AppendUint64(b, g.ChangeCount)
		b = append(b, byte(g.State))
		b = append(b, make([]byte, 15)...)
		for _, id := range g.NSIDs {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
	}
	return b
}

// ParseANALog reads a whole log.
func ParseANALog(b []byte) (*ANALog, error) {
	if len(b) < anaHeaderSize {
		return nil, fmt.Errorf("ANA log: %w", ErrTruncated)
	}
	l := &ANALog{ChangeCount: binary.LittleEndian.Uint64(b)}
	groups := int(binary.LittleEndian.Uint16(b[8:]))
	b = b[anaHeaderSize:]
	for range groups {
		if len(b) < anaGroupSize {
			return nil, fmt.Errorf("ANA group: %w", ErrTruncated)
		}
		g := ANAGroup{
			ID:          binary.LittleEndian.Uint32(b),
			ChangeCount: binary.LittleEndian.Uint64(b[8:]),
			State:       ANAState(b[16]),
		}
		n := uint64(binary.LittleEndian.Uint32(b[4:]))
		b = b[anaGroupSize:]
		if n*4 > uint64(len(b)) {
			return nil, fmt.Errorf("ANA group %d: %w", g.ID, ErrTruncated)
		}
		for range n {
			g.NSIDs = append(g.NSIDs, binary.LittleEndian.Uint32(b))
			b = b[4:]
		}
		l.Groups = append(l.Groups, g)
	}
	return l, nil
}
