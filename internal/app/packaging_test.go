package app

import (
	"bytes"
	"os"
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
	for name, text := range files {
		if _, err := config.Parse(name, text, nil, backends); err != nil {
			t.Error(err)
		}
	}
}
