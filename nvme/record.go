package nvme

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// ErrTruncated is returned if there are fewer bytes than the record has.
var ErrTruncated = errors.New("record is truncated")

// ErrReserved is returned if a field that must be zero is not.
var ErrReserved = errors.New("reserved field is not zero")

// Record is a data structure of the control path: a struct with the order and the widths of the
// wire and blank fields for reserved bytes, or an array. Records are encoded by reflection, which
// is slow and allocates: the I/O path uses arrays with methods instead.
type Record interface {
	ANADescriptor | ANAHeader | ConnectData | DiscoveryEntry | DiscoveryHeader | EffectsLog |
		EnduranceGroupLog | ErrorLogEntry | FeatureEffectsLog | FirmwareLog | IdentifyController |
		IdentifyNamespace | IdentifyNamespaceIndependent | RegisteredController | ReservationLog |
		ReservationStatus | RotationalMediaLog | SelfTestLog | SelfTestResult | SMARTLog |
		SupportedPages | TelemetryHeader
}

// Append appends the bytes of a record.
func Append[T Record](b []byte, r *T) []byte {
	v := reflect.ValueOf(r).Elem()
	return appendValue(slices.Grow(b, int(v.Type().Size())), v)
}

// appendValue appends an addressable value as encoding/binary does, but whole byte arrays at a
// time, because they make up most of a record and reactors encode the replies to hosts.
func appendValue(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				b = appendValue(b, f)
			} else { // a blank field
				b = append(b, make([]byte, f.Type().Size())...)
			}
		}
		return b
	case reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return append(b, v.Bytes()...)
		}
		for i := range v.Len() {
			b = appendValue(b, v.Index(i))
		}
		return b
	case reflect.Uint8:
		return append(b, byte(v.Uint()))
	case reflect.Uint16:
		return binary.LittleEndian.AppendUint16(b, uint16(v.Uint()))
	case reflect.Uint32:
		return binary.LittleEndian.AppendUint32(b, uint32(v.Uint()))
	case reflect.Uint64:
		return binary.LittleEndian.AppendUint64(b, v.Uint())
	}
	panic("nvme: a record has a field of type " + v.Type().String()) // a mistake in this package
}

// Parse parses a record from the start of b. The error is ErrTruncated or ErrReserved; with
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

// PutText fills dst with the ASCII text s, cut or padded with spaces.
func PutText(dst []byte, s string) {
	for i := copy(dst, s); i < len(dst); i++ {
		dst[i] = ' '
	}
}

// Text returns the ASCII text in b without the padding.
func Text(b []byte) string { return string(bytes.TrimRight(b, " \x00")) }

// putString fills dst with the UTF-8 text s, padded with NULs. At least one NUL remains.
func putString(dst []byte, s string) {
	clear(dst)
	copy(dst[:len(dst)-1], s)
}
