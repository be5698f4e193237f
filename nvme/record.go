package nvme

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrTruncated says that fewer bytes came than the record has.
var ErrTruncated = errors.New("record is truncated")

// ErrReserved says that a field that must be zero is not.
var ErrReserved = errors.New("reserved field is not zero")

// Record is a data structure of the control path: a struct that has the order and the widths of the
// wire, with blank fields for what is reserved, or an array. Records are encoded by reflection,
// which is slow and allocates: the I/O path uses arrays with methods instead.
type Record interface {
	ConnectData | DiscoveryEntry | DiscoveryHeader | EffectsLog | EnduranceGroupLog |
		ErrorLogEntry | FeatureEffectsLog | FirmwareLog | IdentifyController | IdentifyNamespace |
		IdentifyNamespaceIndependent | RotationalMediaLog | SMARTLog | SupportedPages
}

// Append appends the bytes of a record.
func Append[T Record](b []byte, r *T) []byte {
	b, err := binary.Append(b, binary.LittleEndian, r)
	if err != nil {
		panic("nvme: " + err.Error()) // T is not of fixed size: a mistake in this package
	}
	return b
}

// Parse reads a record from the start of b. The error is ErrTruncated or ErrReserved; with
// ErrReserved the record is complete.
func Parse[T Record](b []byte) (*T, error) {
	r := new(T)
	if n, err := binary.Decode(b, binary.LittleEndian, r); err != nil {
		return r, fmt.Errorf("%T: %d bytes, need %d: %w", r, len(b), binary.Size(r), ErrTruncated)
	} else if !bytes.Equal(Append(nil, r), b[:n]) {
		return r, fmt.Errorf("%T: %w", r, ErrReserved)
	}
	return r, nil
}

// PutText fills dst with the ASCII text s, cut or padded with spaces (as ASCII strings are on the
// wire).
func PutText(dst []byte, s string) {
	for i := copy(dst, s); i < len(dst); i++ {
		dst[i] = ' '
	}
}

// Text is the ASCII text in b without the padding.
func Text(b []byte) string { return string(bytes.TrimRight(b, " \x00")) }

// putString fills dst with the UTF-8 text s, padded with NULs. At least one NUL remains.
func putString(dst []byte, s string) {
	clear(dst)
	copy(dst[:len(dst)-1], s)
}
