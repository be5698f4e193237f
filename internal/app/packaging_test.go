package app

import (
	"bytes"
	"encoding/json"
	"errors"
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
