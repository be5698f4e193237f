package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestPackagedConfigurations: the configurations of the packages, the image and the manifest are
// valid.
func TestPackagedConfigurations(t *testing.T) {
	read := func(name string) []byte {
		text := testutil.Value(os.ReadFile("../../packaging/" + name))(t)
		return text
	}
	files := map[string][]byte{}
	for _, name := range []string{"nvmf-target.yaml", "container/nvmf-target.yaml"} {
		files[name] = read(name)
	}
	d := yaml.NewDecoder(bytes.NewReader(read("container/kubernetes.yaml")))
	var manifest struct {
		Kind string
		Data map[string]string
	}
	for d.Decode(&manifest) == nil && manifest.Kind != "ConfigMap" {
		continue
	}
	files["container/kubernetes.yaml"] = []byte(manifest.Data["nvmf-target.yaml"])
	var profile struct {
		DefaultAction string
		Syscalls      []struct{ Names []string }
	}
	err := json.Unmarshal(read("container/seccomp.json"), &profile)
	testutil.MustTrue(t, err == nil && profile.DefaultAction == "SCMP_ACT_ERRNO" &&
		len(profile.Syscalls) == 1, "%v %v", profile, err)
	for _, call := range []string{"io_uring_setup", "io_uring_enter", "mbind", "capset"} {
		testutil.True(t, slices.Contains(profile.Syscalls[0].Names, call), "seccomp.json lacks %s",
			call)
	}
	for name, text := range files {
		testutil.Check(t, testutil.Err(config.Parse(name, text, nil, volumes.Backends)))
	}
}

// TestDescriptorStore: systemd keeps a socket for each port, and of RoCE the memory and the sockets
// of both address families.
func TestDescriptorStore(t *testing.T) {
	unit := testutil.Value(os.ReadFile("../../packaging/systemd/nvmf-target.service"))(t)
	_, most, _ := strings.Cut(string(unit), "\nFileDescriptorStoreMax=")
	most, _, _ = strings.Cut(most, "\n")
	testutil.Equal(t, testutil.Value(strconv.Atoi(most))(t), config.MaxListeners+3, "descriptors")
}

// TestRunWarns: make run warns of addresses that other machines reach, and of no others.
func TestRunWarns(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"scripts/run.sh", "scripts/env.sh", "bin/nvmf-target"} {
		text := []byte("#!/bin/sh\n")
		var err error
		if !strings.HasPrefix(name, "bin/") {
			text, err = os.ReadFile("../../" + name)
		}
		file := filepath.Join(dir, name)
		testutil.Must(t, errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o700),
			os.WriteFile(file, text, 0o700)))
	}
	for address, warns := range map[string]bool{
		"": true, "127.0.0.1": false, "::1": false, "::": true, "10.0.0.1": true,
	} {
		c := exec.Command("bash", filepath.Join(dir, "scripts/run.sh"))
		c.Env = append(os.Environ(), "ADDRESS="+address)
		out, err := c.CombinedOutput()
		testutil.True(t, err == nil && strings.Contains(string(out), "WARNING") == warns,
			"%q: %v, %s", address, err, out)
	}
}

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
