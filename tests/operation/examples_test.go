package operation

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
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/tests/harness"
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

// TestOrchestratorExample: the commands in docs/orchestrators.md work one after another.
func TestOrchestratorExample(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	text := testutil.Value(os.ReadFile("../../docs/orchestrators.md"))(t)
	dir := t.TempDir()
	file, keys := filepath.Join(dir, "nvmf.yaml"), filepath.Join(dir, "keys")
	c := strings.ReplaceAll(`
reactors: {count: 1, memory: 8MiB}
control: {socket: DIR/control.sock}
managed: DIR/managed
managed_paths: [DIR]
`, "DIR", dir)
	testutil.Must(t, errors.Join(os.WriteFile(file, []byte(c), 0o600), os.Mkdir(keys, 0o700)))
	harness.Start(t, harness.Options{Config: c, App: app.Options{
		StateDir: dir, Load: func(options ...config.Option) (*config.Config, error) {
			return config.Load(file, nil, volumes.Backends, options...)
		},
	}})
	_, text, _ = bytes.Cut(text, []byte("## For orchestrators"))
	script := "shopt -s expand_aliases; set -e -o pipefail\n" +
		"nvmf-target() { set -- keys/*; cat $1; rm $1; }\n"
	for range 2 {
		_, rest, _ := bytes.Cut(text, []byte("```sh\n"))
		block, rest, ok := bytes.Cut(rest, []byte("```"))
		text = rest
		testutil.MustTrue(t, ok, "the example is not there")
		script += string(block)
	}
	for i := range 2 {
		k := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
		testutil.Secret(t, k.Reveal())
		testutil.Must(t, os.WriteFile(filepath.Join(keys, fmt.Sprint(i)), []byte(k.Reveal()),
			0o600))
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.NewReplacer(
		"/run/nvmf-target/", dir+"/", "/srv/volumes", dir, "10.0.0.1", "127.0.0.1",
		"4420", "0").Replace(script))
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, secret.Mask(string(out)))
	}
	for _, want := range []string{
		`"state":"ready"`, `"secrets":["dhchap_key","dhchap_old_key"]`, "- subsystem", "- listener",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in %s", want, secret.Mask(string(out)))
		}
	}
	if !strings.HasSuffix(string(out), "[]\n") {
		t.Errorf("objects are left: %s", secret.Mask(string(out)))
	}
}
