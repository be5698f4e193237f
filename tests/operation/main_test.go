// Package operation tests what operators use: the manifests, alerts and dashboard of packaging, the
// examples of the documents, and the figures and findings of a running target (tests/harness).
package operation

import (
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/web"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

func TestMain(m *testing.M) {
	web.Every /= 10                     // the page has the next state sooner
	_ = flag.Set("test.parallel", "16") // tests mostly wait
	harness.Main(m)
}

const (
	subNQN  = "nqn.2026-11.io.nvmf-target:test"
	hostNQN = "nqn.2026-11.io.nvmf-target:host"
)

// operated is a target with a control socket, metrics and a page.
type operated struct {
	*harness.Harness
	socket        string
	client        *control.Client
	metrics, page string // their addresses
}

// start starts such a target with these keys and one reactor.
func start(t *testing.T, keys string, o harness.Options) *operated {
	t.Helper()
	s := &operated{
		socket:  filepath.Join(t.TempDir(), "control.sock"),
		metrics: fmt.Sprint("127.0.0.1:", testutil.FreePort(t)),
		page:    fmt.Sprint("127.0.0.1:", testutil.FreePort(t)),
	}
	o.Config = fmt.Sprintf(`
listeners:
  - {transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}
  - {transport: rdma, address: 10.0.0.1, on_unavailable: fail}
reactors: {count: 1, memory: 16MiB}
control: {socket: %q}
metrics: {listen: %q}
web: {listen: %q}
`, s.socket, s.metrics, s.page) + keys
	if o.App.Load == nil {
		c := harness.Parse(t, o.Config)
		o.App.Load = func(...config.Option) (*config.Config, error) { return c, nil }
	}
	s.Harness = harness.Start(t, o)
	s.client = control.NewClient(s.socket)
	t.Cleanup(s.client.Close)
	return s
}

// subsystem is the configuration of the subsystem with a namespace of these keys.
func subsystem(namespace string) string {
	return fmt.Sprintf("subsystems: [{nqn: %q, allow_any_host: true, namespaces: "+
		"[{nsid: 1, %s}]}]\n", subNQN, namespace)
}

func options() host.Options {
	return host.Options{
		HostNQN: hostNQN, HostID: [16]byte{1}, SubNQN: subNQN, Timeout: testutil.Patience,
	}
}

// scraped returns the text of the metrics.
func (s *operated) scraped() string {
	s.T.Helper()
	return testutil.Get(s.T, "http://"+s.metrics+"/metrics")
}

// scrape returns the metrics, values by name and labels.
func (s *operated) scrape() map[string]float64 {
	s.T.Helper()
	out := map[string]float64{}
	for _, m := range seriesLine.FindAllStringSubmatch(s.scraped(), -1) {
		name, _ := strings.CutSuffix(m[0], " "+m[3])
		out[name] = testutil.Value(strconv.ParseFloat(m[3], 64))(s.T)
	}
	return out
}

// seriesLine is a line of a scrape: name, labels, value.
var seriesLine = regexp.MustCompile(`(?m)^(nvmf_target_\w+)(?:\{(.*)\})? (\S+)$`)

func expect(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		n, ok := got[name]
		testutil.True(t, ok && n == v, "%s is %v (%v), want %v", name, n, ok, v)
	}
}

// ofNS returns the name of a metric of the namespace.
func ofNS(name string, more ...string) string {
	labels := append([]string{`nsid="1"`, `subsystem="` + subNQN + `"`}, more...)
	slices.Sort(labels)
	return "nvmf_target_" + name + "{" + strings.Join(labels, ",") + "}"
}
