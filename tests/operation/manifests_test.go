package operation

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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
