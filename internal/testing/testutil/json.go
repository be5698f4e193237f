package testutil

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// JSONLines returns the objects of a file of JSON lines. Each line must be complete.
func JSONLines(t testing.TB, path string) (list []map[string]any) {
	t.Helper()
	for line := range strings.Lines(string(Value(os.ReadFile(path))(t))) {
		var r map[string]any
		err := json.Unmarshal([]byte(line), &r)
		MustTrue(t, err == nil && strings.HasSuffix(line, "\n"), "%v in %q", err, line)
		list = append(list, r)
	}
	return list
}
