package lang

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "4096": 4096, "1B": 1, "1KiB": 1024, "1 KiB": 1024, "3MiB": 3 << 20,
		"1GiB": 1 << 30, "2TiB": 2 << 40, "1PiB": 1 << 50,
		"1KB": 1000, "1kB": 1000, "2MB": 2e6, "500GB": 500e9, "1TB": 1e12, "1PB": 1e15,
		"9223372036854775807": 1<<63 - 1,
	} {
		testutil.Equal(t, testutil.Value(ParseSize(text))(t), want, "%q", text)
	}
	for _, text := range []string{
		"", "GiB", "1G", "-1", "1.5GiB", "0x10", "1e3", "8192PiB",
		"18446744073709551616", "１KiB",
	} {
		got, err := ParseSize(text)
		testutil.True(t, err != nil, "%q: got %d, want an error", text, got)
	}
	for size, want := range map[Size]string{
		0: "0B", 513: "513B", 65536: "64KiB", 1 << 40: "1TiB",
		500e9: "500GB", 1536: "1536B",
	} {
		testutil.Equal(t, size.String(), want, "%d", int64(size))
	}
}

func TestNearest(t *testing.T) {
	keys := []string{"nsid", "backend", "size", "path", "block_size", "read_only", "uuid"}
	for word, want := range map[string]string{
		"sise": "size", "siez": "size",
		"block-size": "block_size", "Path": "path", "readonly": "read_only", "zzz": "", "": "",
	} {
		testutil.Equal(t, Nearest(word, keys), want, "%q", word)
	}
}
