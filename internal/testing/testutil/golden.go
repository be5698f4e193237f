package testutil

import (
	"flag"
	"os"
	"testing"
)

// Update reports whether tests write golden files instead of comparing with them.
var Update = flag.Bool("update", false, "write the golden files")

// Golden compares a text with a file, or writes the file.
func Golden(t testing.TB, file, got string) {
	t.Helper()
	if *Update {
		Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := Value(os.ReadFile(file))(t)
	True(t, got == string(want), "got:\n%s\nwant (%s, -update writes it):\n%s", got, file, want)
}
