package operation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
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
		return testutil.Value(os.ReadFile("../../packaging/" + name))(t)
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
	testutil.True(t, strings.Contains(string(unit), " memfd_create "), "it cannot make the memory")
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
	testutil.MustTrue(t, err == nil, "%v: %s", err, secret.Mask(string(out)))
	for _, want := range []string{
		`"state":"ready"`, `"secrets":["dhchap_key","dhchap_old_key"]`, "- subsystem", "- listener",
	} {
		testutil.True(t, strings.Contains(string(out), want), "no %s in %s", want,
			secret.Mask(string(out)))
	}
	testutil.True(t, strings.HasSuffix(string(out), "[]\n"), "objects are left: %s",
		secret.Mask(string(out)))
}

const containerDir = "../../packaging/container"

// image has the settings of the image in the Containerfile.
type image struct {
	state, runtime, volume, user, port string
}

func containerfile(t *testing.T) (i image) {
	t.Helper()
	b := testutil.Value(os.ReadFile(containerDir + "/Containerfile"))(t)
	stages := strings.Split("\n"+string(b), "\nFROM ")
	last := stages[len(stages)-1]
	testutil.True(t, len(stages) == 3 && strings.HasPrefix(last, "scratch\n"),
		"the image is not made of the files that it needs and nothing else: %s", last)
	for to, text := range map[*string]string{
		&i.state: `STATE_DIRECTORY=(\S+)`, &i.runtime: `RUNTIME_DIRECTORY=(\S+)`,
		&i.volume: `\nVOLUME (\S+)`, &i.user: `\nUSER (\d+):\d+`, &i.port: `\nEXPOSE (\d+)`,
	} {
		m := regexp.MustCompile(text).FindStringSubmatch(last)
		testutil.MustTrue(t, m != nil, "no %s in the Containerfile", text)
		*to = m[1]
	}
	testutil.True(t, i.volume == i.state && i.user != "0", "%+v", i)
	return i
}

// TestCompose: the example mounts the directories of the image, and gives it no more rights than it
// needs.
func TestCompose(t *testing.T) {
	i := containerfile(t)
	var file struct {
		Services map[string]struct {
			Image string
			Build struct {
				Context, Dockerfile string
			}
			ReadOnly       bool     `yaml:"read_only"`
			NetworkMode    string   `yaml:"network_mode"`
			Restart        string   `yaml:"restart"`
			Grace          string   `yaml:"stop_grace_period"`
			CapDrop        []string `yaml:"cap_drop"`
			SecurityOpt    []string `yaml:"security_opt"`
			Tmpfs, Volumes []string
		}
		Volumes map[string]any
	}
	b := testutil.Value(os.ReadFile(containerDir + "/compose.yaml"))(t)
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	testutil.Must(t, d.Decode(&file))
	s, ok := file.Services["nvmf-target"]
	testutil.True(t, ok && s.Image == "nvmf-target:0.1.0" && s.ReadOnly &&
		s.NetworkMode == "host" && slices.Equal(s.CapDrop, []string{"ALL"}) &&
		slices.Contains(s.SecurityOpt, "no-new-privileges:true"), "%+v", s)
	testutil.Check(t,
		testutil.Err(os.Stat(path.Join(containerDir, s.Build.Context, s.Build.Dockerfile))))
	run := i.runtime + ":uid=" + i.user + ",gid=" + i.user + ",mode=0700"
	testutil.True(t, slices.Equal(s.Tmpfs, []string{run}), "tmpfs is %q, not %q", s.Tmpfs, run)
	var at []string
	for _, v := range s.Volumes {
		parts := strings.Split(v, ":")
		at = append(at, parts[1])
		if _, named := file.Volumes[parts[0]]; named {
			continue
		}
		testutil.Check(t, testutil.Err(os.Stat(filepath.Join(containerDir, parts[0]))))
	}
	want := []string{"/etc/nvmf-target/nvmf-target.yaml", i.state}
	testutil.True(t, slices.Equal(at, want), "volumes are mounted at %q, not %q", at, want)
}

// manifest has the parts of Kubernetes objects that the test needs.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Data       map[string]string
	Spec       struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Strategy struct{ Type string }
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     pod
		}
	}
}

type pod struct {
	SecurityContext struct {
		RunAsNonRoot bool   `yaml:"runAsNonRoot"`
		RunAsUser    string `yaml:"runAsUser"`
		FSGroup      string `yaml:"fsGroup"`
	} `yaml:"securityContext"`
	Containers []struct {
		Name, Image     string
		PullPolicy      string `yaml:"imagePullPolicy"`
		SecurityContext struct {
			Escalation   *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities struct{ Drop []string }
		} `yaml:"securityContext"`
		Ports []struct {
			ContainerPort string `yaml:"containerPort"`
			HostPort      string `yaml:"hostPort"`
		}
		Readiness    struct{ Exec struct{ Command []string } } `yaml:"readinessProbe"`
		Liveness     struct{ Exec struct{ Command []string } } `yaml:"livenessProbe"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	Volumes []struct {
		Name      string
		ConfigMap struct{ Name string } `yaml:"configMap"`
		Claim     struct {
			Name string `yaml:"claimName"`
		} `yaml:"persistentVolumeClaim"`
	}
}

// TestKubernetes: the objects of the manifest fit each other and the image.
func TestKubernetes(t *testing.T) {
	i := containerfile(t)
	b := testutil.Value(os.ReadFile(containerDir + "/kubernetes.yaml"))(t)
	objects := map[string]manifest{}
	for d := yaml.NewDecoder(bytes.NewReader(b)); ; {
		var m manifest
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		testutil.True(t, m.APIVersion != "" && m.Metadata.Name != "", "%+v", m)
		objects[m.Kind+" "+m.Metadata.Name] = m
	}
	deployment, ok := objects["Deployment nvmf-target"]
	spec := deployment.Spec.Template.Spec
	labels := deployment.Spec.Template.Metadata.Labels
	testutil.MustTrue(t, ok && len(labels) != 0 && maps.Equal(labels,
		deployment.Spec.Selector.MatchLabels) && deployment.Spec.Strategy.Type == "Recreate" &&
		len(spec.Containers) == 1, "%+v", deployment)
	if p := spec.SecurityContext; !p.RunAsNonRoot || p.RunAsUser != i.user || p.FSGroup != i.user {
		t.Errorf("%+v, and the image has user %s", p, i.user)
	}
	c := spec.Containers[0]
	status := []string{"nvmf-target", "status"}
	s := c.SecurityContext
	testutil.True(t, c.Image == "localhost/nvmf-target:0.1.0" && c.PullPolicy == "IfNotPresent" &&
		s.Escalation != nil && !*s.Escalation && s.ReadOnly && slices.Equal(s.Capabilities.Drop,
		[]string{"ALL"}) && slices.Equal(c.Readiness.Exec.Command, status) &&
		slices.Equal(c.Liveness.Exec.Command, status), "%+v", c)
	if p := c.Ports[0]; p.ContainerPort != i.port || p.HostPort != i.port {
		t.Errorf("%+v, and the image has port %s", p, i.port)
	}
	var at, mounted, volumes []string
	for _, m := range c.VolumeMounts {
		at, mounted = append(at, m.MountPath), append(mounted, m.Name)
	}
	want := []string{"/etc/nvmf-target", i.runtime, i.state}
	testutil.True(t, slices.Equal(at, want), "volumes are mounted at %q, not %q", at, want)
	for _, v := range spec.Volumes {
		volumes = append(volumes, v.Name)
		for kind, name := range map[string]string{
			"ConfigMap": v.ConfigMap.Name, "PersistentVolumeClaim": v.Claim.Name,
		} {
			if _, ok := objects[kind+" "+name]; name != "" && !ok {
				t.Errorf("there is no %s %s", kind, name)
			}
		}
	}
	testutil.True(t, slices.Equal(mounted, volumes), "%q are mounted of %q", mounted, volumes)
	config := objects["ConfigMap nvmf-target"].Data
	testutil.True(t, config["nvmf-target.yaml"] != "", "%q", config)
}
