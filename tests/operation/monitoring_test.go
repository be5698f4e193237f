package operation

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

const (
	dashboardFile = "../../packaging/grafana/nvmf-target.json"
	rulesFile     = "../../packaging/prometheus/nvmf-target.rules.yml"
)

type alertRule struct {
	Alert, Expr string
	Labels      map[string]string
	Annotations struct{ Summary string }
}

// alertRules returns the rules in the packages.
func alertRules(t *testing.T) []alertRule {
	t.Helper()
	var f struct {
		Groups []struct{ Rules []alertRule }
	}
	text, err := os.ReadFile(rulesFile)
	if err == nil {
		err = yaml.Unmarshal(text, &f)
	}
	testutil.MustTrue(t, err == nil && len(f.Groups) == 1 && len(f.Groups[0].Rules) >= 20, "%v %v",
		err, f)
	return f.Groups[0].Rules
}

// dashboardQueries returns the queries of the panels, by title, and of the variables.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	var d struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	text, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	testutil.Must(t, err)
	queries := map[string]string{}
	for _, p := range d.Panels {
		for i, target := range p.Targets {
			queries[fmt.Sprint(p.Title, " ", i)] = target.Expr
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			queries["variable "+v.Name] = v.Definition
		}
	}
	return queries
}

// metricsOf returns the labels of each metric in the text of a scrape.
func metricsOf(text string) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, m := range seriesLine.FindAllStringSubmatch(text, -1) {
		if all[m[1]] == nil {
			all[m[1]] = map[string]bool{"instance": true, "job": true}
		}
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[2], -1) {
			all[m[1]][l[1]] = true
		}
	}
	return all
}

// checkQuery returns the metrics and labels of a query that do not exist.
func checkQuery(query string, metrics map[string]map[string]bool) (missing []string) {
	any := map[string]bool{}
	selector := regexp.MustCompile(`(nvmf_target_\w+)(?:\{(.*?[^$])\})?`)
	for _, m := range selector.FindAllStringSubmatch(query, -1) {
		labels := metrics[m[1]]
		if labels == nil {
			missing = append(missing, m[1])
		}
		maps.Copy(any, labels)
		for _, l := range regexp.MustCompile(`(\w+)\s*(?:=|!=|=~|!~)"`).FindAllStringSubmatch(m[2],
			-1) {
			if !labels[l[1]] {
				missing = append(missing, m[1]+" with "+l[1])
			}
		}
	}
	by := regexp.MustCompile(`\b(?:by|without|ignoring|on) ?\(([^)]*)\)`)
	for _, m := range by.FindAllStringSubmatch(query, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			if l = strings.TrimSpace(l); !any[l] {
				missing = append(missing, "label "+l)
			}
		}
	}
	return missing
}

// monitored returns a target with a host that has read, and been refused, and a function that reads
// more.
func monitored(t *testing.T) (s *operated, read func()) {
	t.Helper()
	s = start(t, fmt.Sprintf(`
hosts: [{nqn: %q, old_keys_until: 2030-01-01T00:00:00Z},
  {nqn: "nqn.2026-11.io.nvmf-target:keys", keys_until: 2031-01-01, dhchap_key:
    "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"}]
`, hostNQN)+subsystem("backend: file, path: "+t.TempDir()+"/f, size: 16MiB"), harness.Options{})
	o := options()
	o.SubNQN = "nqn.2026-11.x:no"
	testutil.MustTrue(t, testutil.Err(host.Connect(t.Context(), s.TCP(), o)) != nil,
		"connected to a subsystem that does not exist")
	o.SubNQN, o.KATO = subNQN, time.Minute
	q := s.Open(s.Connect(s.TCP(), o), 1, 32)
	read = func() {
		t.Helper()
		for range 10 {
			testutil.Must(t, hosttest.Read(t.Context(), q, 1, 0, 8, make([]byte, 4096)))
		}
	}
	read()
	return s, read
}

// TestMonitoringQueries: every metric and label in the dashboard and the alerts is in a scrape of a
// running target. Metrics that need a drive, RDMA, a group or a minute are in the golden file
// of internal/metrics.
func TestMonitoringQueries(t *testing.T) {
	s, _ := monitored(t)
	metrics := metricsOf(s.scraped())
	golden := testutil.Value(os.ReadFile("../../internal/metrics/testdata/metrics.golden"))(t)
	rare := regexp.MustCompile(
		`^nvmf_target_(group|health|namespace_drive|namespace_free|rdma|refusals)_`)
	for name, labels := range metricsOf(string(golden)) {
		if rare.MatchString(name) {
			metrics[name] = labels
		}
	}
	metrics["up"] = map[string]bool{"job": true, "instance": true}
	for title, query := range dashboardQueries(t) {
		missing := checkQuery(query, metrics)
		testutil.True(t, len(missing) == 0, "dashboard, %s: there is no %q", title, missing)
	}
	for _, r := range alertRules(t) {
		missing := checkQuery(r.Expr, metrics)
		testutil.True(t, len(missing) == 0, "%s: there is no %q", r.Alert, missing)
		testutil.True(t, r.Annotations.Summary != "" && slices.Contains([]string{"page", "ticket"},
			r.Labels["severity"]), "%+v", r)
	}
	for _, wrong := range []string{
		`nvmf_target_nothing`, `nvmf_target_listener_up{host="h"}`,
		`sum by (host) (nvmf_target_listener_up)`,
	} {
		testutil.Equal(t, len(checkQuery(wrong, metrics)), 1, "%s passes", wrong)
	}
}

// TestAlertDocumentation: each alert is on the page about monitoring, and in the unit tests.
func TestAlertDocumentation(t *testing.T) {
	for _, file := range []string{
		"../../docs/monitoring.md", strings.Replace(rulesFile, ".rules.", ".rules_test.", 1),
	} {
		text := testutil.Value(os.ReadFile(file))(t)
		for _, r := range alertRules(t) {
			testutil.True(t, strings.Contains(string(text), r.Alert), "%s lacks %s", file, r.Alert)
		}
	}
}

// promtool returns a function that runs promtool.
func promtool(t *testing.T) (run func(args ...string)) {
	t.Helper()
	cache, _ := os.UserCacheDir()
	program := testutil.Program(t, "scripts/deps.sh unit fetches it", "promtool",
		filepath.Join(cache, "nvmf-target/promtool"))
	return func(args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		testutil.True(t, err == nil, "%v: %s", err, out)
	}
}

// TestAlerts: promtool runs the unit tests of the alerts.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool(t)("test", "rules", strings.Replace(rulesFile, ".rules.", ".rules_test.", 1))
}

// TestMonitoringValues: Prometheus evaluates every query of the dashboard and of the alerts over
// three scrapes of a running target with I/O, and finds something if the target has the metrics. It
// also evaluates them over the golden file of internal/metrics, which has the metrics of drives and
// RDMA.
func TestMonitoringValues(t *testing.T) {
	run := promtool(t)
	s, read := monitored(t)
	scrapes := []string{s.scraped()}
	for range 2 {
		read()
		scrapes = append(scrapes, s.scraped())
	}
	golden := testutil.Value(os.ReadFile("../../internal/metrics/testdata/metrics.golden"))(t)
	for name, texts := range map[string][]string{
		"target": scrapes, "golden": {string(golden), string(golden), string(golden)},
	} {
		asked, found := evaluate(t, run, texts)
		t.Logf("%s: %d of %d queries find something", name, found, asked)
		testutil.True(t, found >= asked*2/3, "%s: only %d of %d queries have their metrics", name,
			found, asked)
	}
}

const scrapeInterval = "15s"

// evaluate makes promtool evaluate the queries over scrapes. A query with all its metrics in the
// scrapes must find something. The others must only be valid.
func evaluate(t *testing.T, run func(args ...string), scrapes []string) (asked, found int) {
	t.Helper()
	values := map[string]string{`up{instance="i",job="nvmf-target"}`: "1 1 1"}
	has := map[string]bool{"up": true}
	for i, text := range scrapes {
		for _, m := range seriesLine.FindAllStringSubmatch(text, -1) {
			v, err := strconv.ParseFloat(m[3], 64)
			testutil.MustTrue(t, err == nil, "%v %v", m[0], err)
			if math.IsNaN(v) || math.IsInf(v, 0) {
				continue
			}
			labels := `instance="i",job="nvmf-target"`
			if m[2] != "" {
				labels = m[2] + "," + labels
			}
			name := m[1] + "{" + labels + "}"
			for strings.Count(values[name], " ") < i { // it was missing in earlier scrapes
				values[name] += "_ "
			}
			values[name] += strconv.FormatFloat(v, 'f', -1, 64) + " "
			has[m[1]] = true
		}
	}
	type series struct{ Series, Values string }
	type sample struct {
		Labels string
		Value  int
	}
	type expression struct {
		Expr       string
		EvalTime   string   `yaml:"eval_time"`
		ExpSamples []sample `yaml:"exp_samples"`
	}
	var input []series
	for name, v := range values {
		input = append(input, series{name, strings.TrimSpace(v)})
	}
	var tests []expression
	for _, query := range monitoringQueries(t) {
		asked++
		// For a comparison it matters that there is something to compare.
		query = regexp.MustCompile(` (==|!=|[<>]=?) `).ReplaceAllString(query, " $1 bool ")
		least := "0"
		for _, name := range regexp.MustCompile(`nvmf_target_\w+`).FindAllString(query, -1) {
			if !has[name] {
				least = "-1"
			}
		}
		if least == "0" {
			found++
		}
		tests = append(tests, expression{
			Expr:     "(count(" + query + ") or vector(0)) > bool " + least,
			EvalTime: "30s", ExpSamples: []sample{{"{}", 1}},
		})
	}
	text := testutil.Value(yaml.Marshal(map[string]any{
		"evaluation_interval": scrapeInterval,
		"tests": []any{map[string]any{
			"interval": scrapeInterval, "input_series": input, "promql_expr_test": tests,
		}},
	}))(t)
	file := filepath.Join(t.TempDir(), "test.yml")
	testutil.Must(t, os.WriteFile(file, text, 0o600))
	run("test", "rules", file)
	return asked, found
}

// monitoringQueries returns the queries of the dashboard, as sent by Grafana, and of the alerts.
func monitoringQueries(t *testing.T) (queries []string) {
	t.Helper()
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$subsystem",
		".*")
	for title, query := range dashboardQueries(t) {
		if !strings.HasPrefix(title, "variable ") {
			if query = variables.Replace(query); strings.Contains(query, "$") {
				t.Errorf("%s: an unknown variable: %s", title, query)
			}
			queries = append(queries, query)
		}
	}
	for _, r := range alertRules(t) {
		queries = append(queries, r.Expr)
	}
	return queries
}
