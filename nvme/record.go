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

// Large control-path records are Go structs in the order and with the widths of the wire; reserved
// fields are blank. They are encoded by reflection, which is slow and allocates: the I/O path uses
// named arrays instead.

// appendRecord appends the wire form of the struct that v points to.
func appendRecord(b []byte, v any) []byte {
	b, err := binary.Append(b, binary.LittleEndian, v)
	if err != nil {
		panic("nvme: " + err.Error()) // v is not of fixed size: a mistake in this package
	}
	return b
}

// parseRecord fills the struct that v points to from the start of b.
func parseRecord(b []byte, v any) error {
	if n, err := binary.Decode(b, binary.LittleEndian, v); err != nil {
		return fmt.Errorf("%T: %d bytes, need %d: %w", v, len(b), binary.Size(v), ErrTruncated)
	} else if !bytes.Equal(appendRecord(nil, v), b[:n]) {
		return fmt.Errorf("%T: %w", v, ErrReserved)
	}
	return nil
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
