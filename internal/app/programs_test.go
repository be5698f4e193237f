package app

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestProgramsHoldNothingUp: while a plan, or a reload, waits for a program that prints a key,
// changes can be made, and the target stops at once.
func TestProgramsHoldNothingUp(t *testing.T) {
	dir := t.TempDir()
	hang, begun := filepath.Join(dir, "hang"), filepath.Join(dir, "begun")
	key := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
	testutil.Secret(t, key.Reveal())
	script := fmt.Sprintf("[ ! -e %s ] || { echo >>%s; sleep 1000; }; echo %s", hang, begun,
		key.Reveal())
	file := writeConfig(t, validFile+"hosts: [{nqn: nqn.2026-11.io.nvmf-target:host, "+
		"dhchap_key_command: [/bin/sh, -c, '"+script+"']}]\n")
	load := loader(file)
	s := started(t, Options{Load: load})
	p, err := s.engine.PlanOfReload(t.Context())
	testutil.MustTrue(t, err == nil && len(p.Changes) == 0, "%v, %v", p, err)
	testutil.Must(t, os.WriteFile(hang, nil, 0o600))
	results := make(chan error, 2)
	go func() {
		_, err := s.engine.PlanOfReload(t.Context())
		results <- err
	}()
	go func() {
		_, err := s.Reload()
		results <- err
	}()
	testutil.Until(t, "the programs run", func() bool {
		b, _ := os.ReadFile(begun)
		return len(b) == 2
	})
	changes, err := s.Apply(s.current())
	testutil.True(t, err == nil && len(changes) == 0, "%v, %v", changes, err)
	ctx := testutil.Context(t)
	testutil.Check(t, s.Stop(ctx))
	for range 2 {
		err := <-results
		testutil.True(t, err != nil && strings.Contains(err.Error(), "the target stops"), "%v", err)
	}
}

// TestHangupDuringStart: a SIGHUP during the first reading of the configuration is carried out once
// the target has started.
func TestHangupDuringStart(t *testing.T) {
	key := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
	testutil.Secret(t, key.Reveal())
	once := filepath.Join(t.TempDir(), "once")
	script := fmt.Sprintf("[ -e %s ] || { echo >%s; kill -HUP $PPID; }; echo %s", once, once,
		key.Reveal())
	file := writeConfig(t, validFile+"hosts: [{nqn: nqn.2026-11.io.nvmf-target:host, "+
		"dhchap_key_command: [/bin/sh, -c, '"+script+"']}]\n")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), serveFile+"="+file, "RUNTIME_DIRECTORY="+t.TempDir())
	serves(t, child, "the configuration was applied")
	testutil.Check(t, testutil.Err(os.Stat(once)))
}

// TestProgramsInheritNothing: a program that prints a key has its three descriptors, and none of
// the running target.
func TestProgramsInheritNothing(t *testing.T) {
	key := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
	testutil.Secret(t, key.Reveal())
	list := filepath.Join(t.TempDir(), "list")
	// ls has another one, for the directory.
	script := fmt.Sprintf("ls -l /proc/self/fd >%s; echo %s", list, key.Reveal())
	file := writeConfig(t, validFile+"hosts: [{nqn: nqn.2026-11.io.nvmf-target:host, "+
		"dhchap_key_command: [/bin/sh, -c, '"+script+"']}]\n")
	s := started(t, Options{
		Load: loader(file), StateDir: t.TempDir(),
		ControlSocket: filepath.Join(t.TempDir(), "control.sock"),
	})
	testutil.Value(s.engine.PlanOfReload(t.Context()))(t)
	b := testutil.Value(os.ReadFile(list))(t)
	n := strings.Count(string(b), " -> ")
	testutil.True(t, n == 4, "%d descriptors:\n%s", n, b)
}
