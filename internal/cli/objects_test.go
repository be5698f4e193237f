package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestObjects: the request of each command of testdata/objects.txt, and its output.
func TestObjects(t *testing.T) {
	src, asked := source(), ""
	src.Put = func(_ context.Context, o control.Object, body []byte, _ bool) (control.Plan,
		error,
	) {
		asked = fmt.Sprintf("put %s %s", o.Path(), body)
		return control.Plan{Changes: []control.Change{{Text: "+ it"}}}, nil
	}
	src.Delete = func(_ context.Context, o control.Object, recursive, _ bool) (control.Plan,
		error,
	) {
		asked = fmt.Sprintf("delete %s %t", o.Path(), recursive)
		return control.Plan{}, nil
	}
	socket, dir := serve(t, src), t.TempDir()
	testutil.Must(t, errors.Join(
		os.WriteFile(filepath.Join(dir, "n.yaml"), []byte("backend: file\nsize: 1GiB\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "key"), []byte("a key\n"), 0o600)))
	const file = "testdata/objects.txt"
	datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
		var text strings.Builder
		for line := range strings.SplitSeq(d.Input, "\n") {
			asked = ""
			args := strings.Fields(strings.ReplaceAll(line, "$dir", dir))
			out, err := run(t, append(args, "--socket", socket)...)
			if err != nil {
				out = err.Error()
			}
			fmt.Fprintln(&text, line)
			for l := range strings.Lines(asked + "\n" + out) {
				if l = strings.TrimSpace(l); l != "" {
					fmt.Fprintln(&text, "   ", strings.ReplaceAll(l, dir, "$dir"))
				}
			}
		}
		return text.String()
	})
}

// TestKeys: texts stay as written.
func TestKeys(t *testing.T) {
	null := filepath.Join(t.TempDir(), "null.yaml")
	testutil.Must(t, os.WriteFile(null, []byte("null\n"), 0o600))
	got, err := keys(null, []string{
		"serial=2026-01-01", "model=2026-01-01 10:00:00", "of={uuid: [2026-01-01]}", "size=",
	})
	const want = `{"model":"2026-01-01 10:00:00","of":{"uuid":["2026-01-01"]},` +
		`"serial":"2026-01-01","size":null}`
	testutil.True(t, string(got) == want && err == nil, "%s, %v", got, err)
}
