package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func run(args ...string) (string, error) {
	c := command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

// TestWhatUsersTry: --version, a configuration without --config, and help with examples.
func TestWhatUsersTry(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	text := "listeners: [{transport: tcp, address: 127.0.0.1}]\nsubsystems:\n" +
		"  - {nqn: nqn.2026-11.io.nvmf-target:a, allow_any_host: true, namespaces: " +
		"[{nsid: 1, backend: ram, size: 1MiB}]}\n"
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	for args, want := range map[string]string{
		"--version":          "nvmf-target version ",
		"help":               "NVMF_TARGET_LOG_LEVEL=debug",
		"help serve":         "nvmf-target serve nvmf-target.yaml",
		"check " + file:      file + ": valid",
		"check -c " + file:   file + ": valid",
		"check a -c " + file: "the configuration is given twice",
		"check a b":          "accepts at most 1 arg",
		"key":                "psk-identity",
		"key shwo":           "unknown command \"shwo\" for \"nvmf-target key\"",
		"key show /nowhere":  "open /nowhere: no such file",
		"convert a":          "unknown command",
		"namespace a":        "unknown command",
		"subsystem a":        "unknown command",
		"host a":             "unknown command",
		"serve /nowhere":     "stat /nowhere: no such file",
	} {
		out, err := run(strings.Fields(args)...)
		if err != nil {
			out += err.Error()
		}
		testutil.True(t, strings.Contains(out, want), "%s: %s, want %q", args, out, want)
	}
}
