package app

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config"
)

// TestPackagedConfigurations: those of the packages, the image and the manifest are valid.
func TestPackagedConfigurations(t *testing.T) {
	read := func(name string) []byte {
		text, err := os.ReadFile("../../packaging/" + name)
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil || profile.DefaultAction != "SCMP_ACT_ERRNO" || len(profile.Syscalls) != 1 {
		t.Fatal(profile, err)
	}
	for _, call := range []string{"io_uring_setup", "io_uring_enter", "mbind", "capset"} {
		if !slices.Contains(profile.Syscalls[0].Names, call) {
			t.Errorf("seccomp.json lacks %s", call)
		}
	}
	for name, text := range files {
		if _, err := config.Parse(name, text, nil, backends); err != nil {
			t.Error(err)
		}
	}
}
