package nvme

import "fmt"

// IDType is NIDT of a Namespace Identification Descriptor (Base section 5.1.13.2.3, CNS 03h).
type IDType uint8

// The identifier types and the lengths they must have.
const (
	IDTypeEUI64 IDType = 1
	IDTypeNGUID IDType = 2
	IDTypeUUID  IDType = 3
	IDTypeCSI   IDType = 4
)

// Size is the only length an identifier of this type may have, 0 if the type is unknown.
func (t IDType) Size() int {
	switch t {
	case IDTypeEUI64:
		return 8
	case IDTypeNGUID, IDTypeUUID:
		return 16
	case IDTypeCSI:
		return 1
	}
	return 0
}

// NamespaceID is one Namespace Identification Descriptor.
type NamespaceID struct {
	Type IDType
	ID   []byte
}

// AppendNamespaceIDs appends a Namespace Identification Descriptor list of 4096 bytes; the rest of
// it is zero. The identifiers must have the length of their type.
func AppendNamespaceIDs(b []byte, ids ...NamespaceID) []byte {
	n := len(b)
	for _, id := range ids {
		b = append(b, byte(id.Type), byte(len(id.ID)), 0, 0)
		b = append(b, id.ID...)
	}
	return append(b, make([]byte, IdentifyDataSize-(len(b)-n))...)
}

// ParseNamespaceIDs returns the descriptors up to one of length 0, with identifiers in b.
func ParseNamespaceIDs(b []byte) ([]NamespaceID, error) {
	var ids []NamespaceID
	for len(b) >= 4 && b[1] != 0 {
		t, n := IDType(b[0]), int(b[1])
		if want := t.Size(); want != 0 && n != want {
			return ids, fmt.Errorf("namespace identifier type %d: length %d, must be %d", t, n,
				want)
		}
		if b[2]|b[3] != 0 {
			return ids, ErrReserved
		}
		if len(b) < 4+n {
			return ids, ErrTruncated
		}
		ids = append(ids, NamespaceID{Type: t, ID: b[4 : 4+n]})
		b = b[4+n:]
	}
	return ids, nil
}
