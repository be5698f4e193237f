package testutil

import (
	"encoding/hex"
	"strings"
	"testing"
)

// Unhex returns the bytes of a hexadecimal text, which may have spaces.
func Unhex(t testing.TB, text string) []byte {
	t.Helper()
	return Value(hex.DecodeString(strings.Join(strings.Fields(text), "")))(t)
}
