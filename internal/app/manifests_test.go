package app

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
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

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

// TestDescriptorStore: systemd keeps a socket for each port, and the memory of RoCE.
func TestDescriptorStore(t *testing.T) {
	unit := testutil.Value(os.ReadFile("../../packaging/systemd/nvmf-target.service"))(t)
	_, most, _ := strings.Cut(string(unit), "\nFileDescriptorStoreMax=")
	most, _, _ = strings.Cut(most, "\n")
	testutil.Equal(t, testutil.Value(strconv.Atoi(most))(t), config.MaxListeners+1, "descriptors")
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
