package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// version is the version of the format.
const version = 2

// otherFormat is the error for a file with this version of the format.
type otherFormat int

func (f otherFormat) Error() string {
	return fmt.Sprintf("it has format %d, and this program knows format %d", int(f), version)
}

// envelope is the structure of a file.
type envelope struct {
	Version int `json:"version"`
	// Kind is the kind of Data.
	Kind string `json:"kind"`
	// CRC32C is the checksum of Kind and Data, in hexadecimal.
	CRC32C string          `json:"crc32c"`
	Data   json.RawMessage `json:"data"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(kind string, data []byte) string {
	sum := crc32.Checksum([]byte(kind+"\n"), castagnoli)
	return fmt.Sprintf("%08x", crc32.Update(sum, castagnoli, data))
}

// encode returns the content of a file. The encoding of a value is unique.
func encode(kind string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(envelope{version, kind, checksum(kind, data), data}, "", "  ")
	return append(text, '\n'), err
}

// decode reads a file into v, which is zero. It accepts exactly the results of encode, byte by
// byte: no key is unknown, missing, twice or of another type, and nothing follows.
func decode(kind string, text []byte, v any) error {
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	switch {
	case e.Version != version:
		return otherFormat(e.Version)
	case e.Kind != kind:
		return fmt.Errorf("it is of the kind %q instead of %q", e.Kind, kind)
	}
	if err := json.Unmarshal(e.Data, v); err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	again, err := encode(kind, v)
	if err == nil && !bytes.Equal(again, text) {
		err = errors.New("it is damaged: its checksum or its form is wrong")
	}
	return err
}
