package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// load writes files, each below a line "== NAME", and loads nvmf.yaml, the first one.
func load(t *testing.T, files string, environ ...string) (*Config, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	for i, file := range strings.Split("\nnvmf.yaml\n"+files, "\n== ") {
		name, text, _ := strings.Cut(strings.TrimPrefix(file, "\n"), "\n")
		if i == 0 {
			name = "nvmf.yaml"
		}
		testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testutil.Must(t, os.WriteFile(name, []byte(text+"\n"), 0o644))
	}
	return Load("nvmf.yaml", environ, testBackends)
}

// TestPlaceInIncludedFile: a problem found later is reported at its place in the included file.
func TestPlaceInIncludedFile(t *testing.T) {
	c := testutil.Value(load(t, "include: [a.yaml]"+minimal+"== a.yaml\nlog:\n  level: info\n"))(t)
	testutil.Equal(t, c.Problem("log.level", "is odd", "").Error(),
		"a.yaml:2:10: log.level: is odd", "")
}

// TestIncludeIsBounded: several files cannot make the parser do more work than one file, and only
// regular files are opened.
func TestIncludeIsBounded(t *testing.T) {
	var many strings.Builder
	for i := range 1025 {
		fmt.Fprintf(&many, "== conf.d/%d.yaml\nlog: {}\n", i)
	}
	aliases := "subsystems: [" + strings.Repeat("*s, ", 1000) + "]\n"
	for name, test := range map[string]struct{ files, want string }{
		"files": {many.String(), "more than 1024 files or 4MiB"},
		"bytes": {
			"== conf.d/a.yaml\n" + strings.Repeat("#\n", 4<<20/2),
			"more than 1024 files or 4MiB",
		},
		"aliases": {
			"== conf.d/a.yaml\nx: &s {nqn: nqn.2026-11.io.nvmf-target:disk0, hosts: [" +
				strings.Repeat("h, ", 1000) + "]}\n" + aliases,
			"more than 100000 values",
		},
	} {
		_, err := load(t, "include: [conf.d/*]"+minimal+test.files)
		testutil.True(t, err != nil && strings.Contains(err.Error(), test.want) &&
			len(err.Error()) <= 1000, "%s: %.1000v", name, err)
	}
	t.Chdir(t.TempDir())
	testutil.Must(t, syscall.Mkfifo("pipe", 0o600))
	_, err := Parse("nvmf.yaml", []byte("include: [pipe]"+minimal), nil, testBackends)
	testutil.Fails(t, err, "open pipe: not a regular file", "")
}

// TestVariablesAreBounded: variables do not make the configuration larger than a file may be.
func TestVariablesAreBounded(t *testing.T) {
	big := "BIG=" + strings.Repeat("x", 100_000)
	text := minimal + "tcp: {congestion_control: \"" + strings.Repeat("${BIG}", 100) + "\"}\n"
	_, err := parse(t, text, big)
	testutil.Fails(t, err, "larger than 4MiB", "")
}
