package operation

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
			if err != nil {
				t.Fatal(m[0], err)
			}
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
