package lint

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// documents calls fn with every page of the documentation.
func documents(t *testing.T, fn func(name, text string)) {
	t.Helper()
	sourceFiles(t, func(name string) {
		if path.Ext(name) != ".md" {
			return
		}
		text := testutil.Value(os.ReadFile(filepath.Join(root, name)))(t)
		fn(name, string(text))
	})
}

// tableCells returns the quoted words in the first cells of the tables of a page.
func tableCells(text string) (cells []string) {
	for line := range strings.Lines(text) {
		row, ok := strings.CutPrefix(line, "| ")
		if !ok {
			continue
		}
		first, _, _ := strings.Cut(row, " | ")
		for _, m := range quoted.FindAllStringSubmatch(first, -1) {
			cells = append(cells, m[1])
		}
	}
	return cells
}

// metricNames returns the names of the metrics in an exposition, without their prefix.
func metricNames(exposition string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^# HELP nvmf_target_(\S+)`).
		FindAllStringSubmatch(exposition, -1) {
		names = append(names, m[1])
	}
	return names
}

// sentMetrics returns the names of metrics that a file sends, unless it composes them.
func sentMetrics(f *goFile) (names []string) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if ok && slices.ContainsFunc([]string{"gauge", "counter", "histogram"},
			func(kind string) bool { return isNamed(call.Fun, kind) }) {
			if name, ok := constant(call.Args[0]); ok {
				names = append(names, name)
			}
		}
		return true
	})
	return names
}

// TestDocumentedMetrics: the golden file has all metrics, docs/metrics.md lists exactly these, and
// no page names another one.
func TestDocumentedMetrics(t *testing.T) {
	golden := testutil.Value(os.ReadFile("../metrics/testdata/metrics.golden"))(t)
	names := metricNames(string(golden))
	testutil.MustTrue(t, len(names) >= 30, "only %d metrics found", len(names))
	goFiles(t, func(f *goFile) {
		if path.Dir(f.name) == "internal/metrics" && !f.isTest() {
			for _, n := range sentMetrics(f) {
				testutil.True(t, slices.Contains(names, n), "the golden file does not have %s", n)
			}
		}
	})
	full := regexp.MustCompile(`nvmf_target_([a-z][a-z_]*[a-z])`)
	ofHistogram := regexp.MustCompile(`(latency_seconds)_(bucket|sum|count)$`)
	documents(t, func(file, text string) {
		for _, m := range full.FindAllStringSubmatch(text, -1) {
			testutil.True(t, slices.Contains(names, ofHistogram.ReplaceAllString(m[1], "$1")),
				"%s names the metric %s, which does not exist", file, m[0])
		}
		if file != "docs/metrics.md" {
			return
		}
		listed := tableCells(text)
		for _, m := range listed {
			testutil.True(t, slices.Contains(names, m),
				"%s lists the metric %s, which does not exist", file, m)
		}
		for _, n := range names {
			testutil.True(t, slices.Contains(listed, n), "%s does not list the metric %s", file, n)
		}
	})
}

func TestMetricsAreFound(t *testing.T) {
	names := metricNames("# HELP nvmf_target_c_d help\n# TYPE nvmf_target_c_d gauge\n" +
		"nvmf_target_c_d 1\n# HELP nvmf_target_f help\n# HELP other_h help\n")
	testutil.EqualSlices(t, names, []string{"c_d", "f"}, "")
	f := parseGo(t, "a.go", []byte("package a\n\nfunc b() {\n\ts.gauge(\"c\"+\"_d\", \"help\", 1)"+
		"\n\ts.counter(of+\"_e\", \"help\", 1)\n\tother(\"h\")\n}\n"))
	testutil.EqualSlices(t, sentMetrics(f), []string{"c_d"}, "")
	page := "| name | meaning |\n|---|---|\n| `c_d`, `x` | by `op` |\ntext `y`\n"
	testutil.EqualSlices(t, tableCells(page), []string{"c_d", "x"}, "")
}

// unknownMessages returns the messages that are in none of the texts; … stands for any text.
func unknownMessages(messages, texts []string) (unknown []string) {
	for _, m := range messages {
		for part := range strings.SplitSeq(m, "…") {
			if !slices.ContainsFunc(texts, func(s string) bool {
				return strings.Contains(s, strings.TrimSpace(part))
			}) {
				unknown = append(unknown, m)
				break
			}
		}
	}
	return unknown
}

// TestDocumentedMessages: the messages in the tables of the documents are in the code or, if the
// code composes them, in golden files.
func TestDocumentedMessages(t *testing.T) {
	var texts []string
	goFiles(t, func(f *goFile) {
		if f.isTest() {
			return
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				if s, ok := constant(e); ok {
					texts = append(texts, s)
				}
			}
			return true
		})
	})
	for _, pattern := range []string{
		"config/testdata/broken/*.golden", "internal/convert/testdata/*.golden",
		"internal/convert/testdata/forms/*.txt",
	} {
		golden, err := filepath.Glob(filepath.Join(root, pattern))
		testutil.MustTrue(t, err == nil && len(golden) != 0, "no golden files:  %v", err)
		for _, name := range golden {
			b := testutil.Value(os.ReadFile(name))(t)
			texts = append(texts, string(b))
		}
	}
	for page, heading := range map[string]string{
		"docs/troubleshooting.md": "## Messages of the target",
		"docs/migration.md":       "## What has no counterpart",
	} {
		text := testutil.Value(readPage(page))(t)
		_, ours, _ := strings.Cut(text, heading)
		ours, _, _ = strings.Cut(ours, "\n## ")
		messages := tableCells(ours)
		testutil.MustTrue(t, len(messages) >= 10, "%s: only %d messages found", page, len(messages))
		for _, m := range unknownMessages(messages, texts) {
			t.Errorf("%s quotes %q, which the target does not say", page, m)
		}
	}
}

func TestUnknownMessagesAreFound(t *testing.T) {
	texts := []string{"%d queues have %d KiB", "no host may connect"}
	got := unknownMessages([]string{"no host", "… queues have … KiB", "no disk", "queues … MiB"},
		texts)
	testutil.True(t, slices.Equal(got, []string{"no disk", "queues … MiB"}), "%q", got)
}

// featureRow has the cells of a row of docs/features.md: the feature, this target, the two peers,
// and the tests.
type featureRow [5]string

// featureRows returns the rows of the tables of a page, without headings.
func featureRows(text string) (rows []featureRow) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.Contains(line, "| shown by |") {
			continue
		}
		var r featureRow
		for i := range min(len(r), len(cells)) {
			r[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, r)
	}
	return rows
}

var testLink = regexp.MustCompile(`\[([^\]]+)\]\(\.\./([^)]+)\)`)

// wrong returns a problem of a row: missing cells, a feature without a test, or a test that does
// not exist. read returns a file of the module.
func (r *featureRow) wrong(read func(name string) (string, error)) string {
	if slices.Contains(r[:4], "") {
		return "a cell is missing"
	}
	tests := testLink.FindAllStringSubmatch(r[4], -1)
	first, _, _ := strings.Cut(strings.TrimRight(r[1], ",;:"), " ")
	if first = strings.TrimRight(first, ",;:"); len(tests) == 0 && (first == "yes" ||
		first == "partly") {
		return "no test shows it"
	}
	for _, m := range tests {
		text, err := read(m[2])
		switch {
		case err != nil:
			return err.Error()
		case path.Ext(m[2]) == ".go" && !strings.Contains(text, "\nfunc "+m[1]+"(t *testing.T)"):
			return m[1] + " is not in " + m[2]
		case path.Ext(m[2]) != ".go" && path.Base(m[2]) != m[1]+path.Ext(m[2]):
			return m[2] + " is not the scenario or the sequence " + m[1]
		}
	}
	return ""
}

// TestFeatureTable: each supported feature in docs/features.md names tests, and they exist.
func TestFeatureTable(t *testing.T) {
	read := func(name string) (string, error) {
		b, err := os.ReadFile(filepath.Join(root, name))
		return string(b), err
	}
	text := testutil.Value(read("docs/features.md"))(t)
	rows := featureRows(text)
	testutil.True(t, len(rows) >= 150, "only %d rows found", len(rows))
	for _, r := range rows {
		testutil.Equal(t, r.wrong(read), "", "docs/features.md, %q", r[0])
	}
}

func TestWrongFeaturesAreFound(t *testing.T) {
	read := func(name string) (string, error) {
		if strings.HasPrefix(name, "no") {
			return "", os.ErrNotExist
		}
		return "package a\n\nfunc TestA(t *testing.T) {}\n", nil
	}
	for row, right := range map[string]bool{
		"| a | yes | no | no | [TestA](../a_test.go), [b](../c/b.sh) |": true,
		"| a | no, never | no | no | |":                                 true,
		"| a | yes, always | no | no | |":                               false,
		"| a | partly: b | no | no | see c |":                           false,
		"| a | yes | no |  | [TestA](../a_test.go) |":                   false,
		"| a | yes | no | no | [TestB](../a_test.go) |":                 false,
		"| a | yes | no | no | [TestA](../no_test.go) |":                false,
		"| a | yes | no | no | [a](../c/b.sh) |":                        false,
	} {
		rows := featureRows("| x | nvmf-target | y | z | shown by |\n|---|---|---|---|---|\n" + row)
		testutil.True(t, len(rows) == 1 && (rows[0].wrong(read) == "") == right, "%s: %q", row,
			rows)
	}
}

// decisionNumbers returns a problem with the number of a decision: a file NNNN-NAME.md begins with
// "# NNNN: ", and no other file has that number. seen has the files so far.
func decisionNumbers(name, text string, seen map[string]string) (wrong string) {
	number, _, _ := strings.Cut(path.Base(name), "-")
	other := seen[number]
	seen[number] = name
	switch {
	case other != "":
		return name + " has the number of " + other
	case number != "0000" && !strings.HasPrefix(text, "# "+number+": "):
		return name + " does not begin with its number"
	}
	return ""
}

// indexed reports whether the index of decisions has a line for the decision, with its title.
func indexed(index, name, text string) bool {
	title, _, _ := strings.Cut(text, "\n")
	number, title, _ := strings.Cut(strings.TrimPrefix(title, "# "), ": ")
	return strings.Contains(index, "- ["+number+"]("+path.Base(name)+") "+title+"\n")
}

// TestDecisionNumbers: each decision in docs/adr has a unique number and is in the index.
func TestDecisionNumbers(t *testing.T) {
	const index = "docs/adr/README.md"
	seen, texts := map[string]string{}, map[string]string{}
	documents(t, func(name, text string) {
		if path.Dir(name) != "docs/adr" {
			return
		}
		texts[name] = text
		if name == index {
			return
		}
		testutil.Equal(t, decisionNumbers(name, text, seen), "", "")
	})
	for _, name := range seen {
		testutil.True(t, name == "docs/adr/0000-template.md" || indexed(texts[index], name,
			texts[name]), "%s: %s and its title are missing", index, name)
	}
	testutil.True(t, len(seen) >= 40, "only %d decisions found", len(seen))
	const same, other = "docs/adr/0001-x.md", "docs/adr/0001-y.md"
	seen = map[string]string{}
	testutil.True(t, decisionNumbers(same, "# 0001: X\n", seen) == "" && decisionNumbers(other,
		"# 0001: Y\n", seen) == other+" has the number of "+same &&
		decisionNumbers("docs/adr/0002-z.md", "# 0003: Z\n", seen) != "" &&
		indexed("- [0001](0001-x.md) X\n", same, "# 0001: X\n") &&
		!indexed("- [0001](0001-x.md) X\n", same, "# 0001: Another\n"),
		"wrong numbers are not found")
}
