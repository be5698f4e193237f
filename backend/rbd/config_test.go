package rbd

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestParseName(t *testing.T) {
	for text, want := range map[string]Name{
		"p/i": {Pool: "p", Image: "i"}, "p/n/i": {Pool: "p", Namespace: "n", Image: "i"},
		"p/i@s":   {Pool: "p", Image: "i", Snapshot: "s"},
		"p/n/i@s": {Pool: "p", Namespace: "n", Image: "i", Snapshot: "s"},
	} {
		testutil.Equal(t, testutil.Value(ParseName(text))(t), want, "%s", text)
	}
	for _, text := range []string{
		"", "i", "/i", "p/", "p//i", "p/n/", "a/b/c/d", "p/i@", "p/\x00",
	} {
		testutil.Fails(t, testutil.Err(ParseName(text)), "is not the name of an image", "%q", text)
	}
}
